from __future__ import annotations

import io
import json
import logging

from rich.text import Text

from timonel.cli.errors import print_error
from timonel.cli.render.output import console, print_json
from timonel.logs import configure_logging, printable

NAME = "a\x1b]0;owned\x07\x9b2Jb\r\u202e\udc80\n2026-01-01 INFO forged\té"
SHOWN = "a\\x1b]0;owned\\x07\\x9b2Jb\\r\\u202e\\udc80\n2026-01-01 INFO forged\té"


def test_only_tabs_and_line_feeds_stay():
    assert printable(NAME) == SHOWN
    assert printable("Ünïcode 日本 🎉") == "Ünïcode 日本 🎉"


def test_log_lines_show_names_escaped_and_indent_lines_within_them(monkeypatch):
    root, stream = logging.getLogger(), io.StringIO()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    configure_logging(format_="%(levelname)s %(message)s", stream=stream)
    root.warning("no model %s", NAME)
    error = ValueError(NAME)
    root.error("failed", exc_info=error)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("WARNING no model a\\x1b]0;owned")
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["WARNING", "ERROR"]
    assert "\x1b" not in stream.getvalue()


def test_consoles_and_errors_show_names_escaped(capsys):
    console().print(Text("a\x1b[2Jb\x9bc"), Text("\x1b]0;t"))
    assert capsys.readouterr().out == "a\\x1b[2Jb\\x9bc \\x1b]0;t\n"
    console().print("a[/b] [link=http://c]d[/link] :smile:")
    assert capsys.readouterr().out == "a[/b] [link=http://c]d[/link] :smile:\n"
    print_error("no model a\x1b[2Jb")
    assert capsys.readouterr().err == "error: no model a\\x1b[2Jb\n"


def test_json_shows_names_escaped(capsys):
    print_json([NAME, "Ünïcode 日本 🎉"])
    out = capsys.readouterr().out
    assert json.loads(out) == [NAME, "Ünïcode 日本 🎉"]
    assert printable(out) == out
    assert "Ünïcode 日本 🎉" in out

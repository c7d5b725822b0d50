"""Command lines of Markdown pages, parsed as the program parses them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import typer

from timonel.cli.main import app
from timonel.cli.settings import hoist

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n)+")
_INLINE = re.compile(r"`(timonel [^`\n]+)`")
_SHELLS = {"", "sh", "text", "console"}
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
# Comments, pipes, redirections and further commands.
_REST = re.compile(r"\s+(?:#|\||>|&&|\|\|).*|;$")


def command_lines(page: Path) -> list[str]:
    """Return the command lines in the code blocks of a page, continuations joined."""
    text = page.read_text(encoding="utf-8")
    blocks = [content for language, content in _FENCE.findall(text) if language in _SHELLS]
    blocks += _INDENTED.findall(_FENCE.sub("", text))
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = (line.strip().removeprefix("$ ") for line in lines)
    return [_command(line) for line in commands if line.startswith("timonel ")]


def _command(line: str) -> str:
    """Cut off what follows a command, outside of quotes."""
    quoted: list[str] = []

    def hide(found: re.Match[str]) -> str:
        quoted.append(found[0])
        return f"\0{len(quoted) - 1}\0"

    hidden = _REST.sub("", _QUOTED.sub(hide, line))
    return re.sub(r"\0(\d+)\0", lambda found: quoted[int(found[1])], hidden)


def mentioned_commands(page: Path) -> list[str]:
    """Return the commands in the sentences and tables of a page; arguments may be missing."""
    return _INLINE.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def parse(line: str) -> None:
    """Parse a command line without running it; raise what the program would."""
    command: Any = typer.main.get_command(app)
    name, words, parent = "timonel", list(hoist(shlex.split(line)[1:])), None
    while True:
        context = command.make_context(name, words, parent=parent)
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not hasattr(command, "resolve_command") or not rest:
            return
        name, command, words = command.resolve_command(context, rest)
        parent = context

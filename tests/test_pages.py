"""HTML pages."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from timonel import pages
from timonel.errors import SpecError
from timonel.pages import check_ending


def test_endings() -> None:
    check_ending(Path("a.HTML"), "a report")
    check_ending(Path("a.svg"), "a figure", (".svg", ".html"))
    with pytest.raises(SpecError, match=r"a report is an HTML page, got 'a.svg': .* with \.html$"):
        check_ending(Path("a.svg"), "a report")


def test_texts_are_escaped() -> None:
    evil = "<script>alert('x')</script>\""
    body = pages.table([(evil, evil)], (evil, "b")) + pages.image(b"<svg/>", evil)
    found = pages.page(evil, body)
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(found)
    assert "script" not in tags
    assert tags.count("th") == 3
    assert tags.count("img") == 1

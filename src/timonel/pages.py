"""HTML pages and their tables: readable on phones and in print, without scripts or other files."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from timonel.errors import SpecError

# Colours that colour-blind people can tell apart (Okabe and Ito).
BLUE, RED, ORANGE, DARK = "#0072B2", "#D55E00", "#E69F00", "#1f2d3d"
_KINDS = {".svg": "an SVG file", ".html": "an HTML page"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2d3d; max-width: 1100px;
  margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.6em } h2 { font-size: 1.2em; margin: 2em 0 .5em } img { max-width: 100% }
h1, h2, h3, p, figcaption { overflow-wrap: anywhere }
.scroll { overflow-x: auto } table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .2em 1.5em .2em 0; text-align: left; vertical-align: top }
td { font-variant-numeric: tabular-nums }
@media print { body { margin: 0; max-width: none } tr, figure, h2 { break-inside: avoid } }
"""


def check_ending(path: str | Path, what: str, endings: Sequence[str] = (".html",)) -> None:
    """Check that a file can have this name.

    Args:
        what: Its contents, such as ``a report``.
        endings: Accepted endings, of ``.svg`` and ``.html``.
    """
    if not str(path).lower().endswith(tuple(endings)):
        kinds = " or ".join(_KINDS[ending] for ending in endings)
        raise SpecError(
            f"{what} is {kinds}, got {str(path)!r}",
            hint=f"end the name with {' or '.join(endings)}",
        )


def image(svg: bytes, description: str) -> str:
    """Return an HTML image that contains an SVG file."""
    return picture(svg, "image/svg+xml", description)


def picture(content: bytes, kind: str, description: str) -> str:
    """Return an HTML image with its content, such as ``image/jpeg``."""
    data = base64.b64encode(content).decode()
    return f'<img alt="{escape(description)}" src="data:{kind};base64,{data}">'


def table(rows: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> str:
    """Return an HTML table of texts; the first cell of a row is its header."""
    head = "".join(f"<th scope=col>{escape(text)}</th>" for text in heads)
    lines = [
        "<tr>"
        + "".join(
            f"<td>{escape(text)}</td>" if place else f"<th scope=row>{escape(text)}</th>"
            for place, text in enumerate(row)
        )
        + "</tr>"
        for row in rows
    ]
    head = f"<tr>{head}</tr>" if head else ""
    return f"<div class=scroll><table>{head}{''.join(lines)}</table></div>"


def page(title: str, body: str, style: str = "") -> str:
    """Return an HTML page without scripts or references to other files."""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}{style}</style><h1>{escape(title)}</h1>{body}</html>\n"
    )

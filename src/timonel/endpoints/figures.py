"""Shared style of figures and of the HTML pages that embed them."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from timonel.errors import SpecError

# Colours that colour-blind people can tell apart (Okabe and Ito).
BLUE, RED, ORANGE, DARK = "#0072B2", "#D55E00", "#E69F00", "#1f2d3d"
_KINDS = {".svg": "an SVG file", ".html": "an HTML page"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2d3d; max-width: 1100px;
  margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.6em } img { width: 100% }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .2em 1.5em .2em 0; text-align: left }
"""


def check_ending(path: Path, what: str, endings: Sequence[str] = (".html",)) -> None:
    """Check that a file can have this name.

    Args:
        path: The file.
        what: Its contents, such as ``a report``.
        endings: Accepted endings, of ``.svg`` and ``.html``.

    Raises:
        SpecError: It has another ending.
    """
    if path.suffix.lower() not in endings:
        kinds = " or ".join(_KINDS[ending] for ending in endings)
        raise SpecError(
            f"{what} is {kinds}, got {str(path)!r}",
            hint=f"end the name with {' or '.join(endings)}",
        )


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib; the size is in inches."""
    # Without pyplot, which keeps figures. Importing matplotlib takes half a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style(axes: Any, *, legend: bool = True) -> None:
    """Set grid, frame and legend of axes."""
    axes.grid(color="#e6e6e6", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        # Above the axes, so that it covers no data.
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, fontsize=8, frameon=False)


def set_log_ticks(axes: Any) -> None:
    """Make the y axis logarithmic, with ticks that do not overlap. Plot the data first."""
    from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter  # noqa: PLC0415

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 2 else (1,)
    # A smaller range may contain fewer than two of these ticks.
    locator = AutoLocator() if decades < math.log10(5) else LogLocator(subs=steps)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def to_svg(figure: Any) -> bytes:
    """Return a figure as an SVG file; the same figure gives the same bytes."""
    from matplotlib import rc_context  # noqa: PLC0415

    file = io.BytesIO()
    with rc_context({"svg.hashsalt": "timonel"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def image(svg: bytes, description: str) -> str:
    """Return an HTML image that contains an SVG file."""
    data = base64.b64encode(svg).decode()
    return f'<img alt="{escape(description)}" src="data:image/svg+xml;base64,{data}">'


def table(rows: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> str:
    """Return an HTML table of texts."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    lines = ["<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows]
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{''.join(lines)}</table>"


def page(title: str, body: str) -> str:
    """Return an HTML page without scripts or references to other files."""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f'<meta name=viewport content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1>{body}</html>\n"
    )

"""Tables without borders, sparklines and bars, the same on a terminal and in a pipe."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from timonel.styles import STATUS_STYLES, number

# Escape sequences and control characters, as in the messages of coloured errors.
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, wide: int = 0) -> Table:
    """Return a table; only column ``wide`` is truncated to fit.

    Args:
        headers: Column names, in capitals by convention.
        rows: Texts, rich texts or numbers; None is shown as a dash.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    cells = [[cell(value) for value in row] for row in rows]
    for index, header in enumerate(headers):
        width = max([len(header), *[row[index].cell_len for row in cells]])
        made.add_column(
            Text(header),  # a string could contain markup
            # Rich narrows only columns that may wrap; the cells themselves are truncated.
            no_wrap=index != wide,
            min_width=len(header) if index == wide else width,
        )
    for row in cells:
        row[wide].no_wrap, row[wide].overflow = True, "ellipsis"
        made.add_row(*row)
    return made


def pairs(values: Mapping[str, Any]) -> Table:
    """Return a table of names and values."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in values.items():
        made.add_row(name, cell(value))
    return made


def cell(value: Any) -> Text:
    """Format a value as a table cell."""
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", style="dim")
    return Text(number(value)) if isinstance(value, float) else printable(str(value))


def printable(text: str, style: str = "") -> Text:
    """Return a text without control characters, which could change the terminal."""
    return Text(_CONTROLS.sub("", text), style=style)


def status(word: str) -> Text:
    """Return a status in its colour."""
    return Text(word, style=STATUS_STYLES.get(word, ""))


_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Render ``values`` as blocks, lowest to highest; dots are non-finite values.

    Args:
        values: The curve; more points than ``width`` are averaged in groups.
    """
    # Scaled to [-1, 1] so that neither a sum nor a difference overflows.
    scale = max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0
    points = _resample([value / scale for value in values], width)
    finite = [value for value in points if math.isfinite(value)]
    if not finite:
        return "·" * len(points)
    low, high = min(finite), max(finite)
    return "".join(_block(value, low, high) for value in points)


def bar(share: float, width: int = 20) -> str:
    """Render ``share``, between 0 and 1, as a bar of ``width`` characters."""
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    full = round(share * width)
    return "█" * full + "░" * (width - full)


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "·"
    if high == low:
        return _BLOCKS[3]
    return _BLOCKS[round((value - low) / (high - low) * (len(_BLOCKS) - 1))]


def _resample(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [len(values) * i // width for i in range(width + 1)]
    return [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan

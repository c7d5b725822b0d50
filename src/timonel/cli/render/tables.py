"""Tables without borders, the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from timonel.styles import STATUS_STYLES, number

__all__ = ["STATUS_STYLES", "cell", "number", "pairs", "status", "table"]


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, wide: int = 0) -> Table:
    """Return a table; only column ``wide`` is truncated to fit.

    Args:
        headers: Column names, in capitals by convention.
        rows: Texts, rich texts or numbers; None is shown as a dash.
        wide: Index of the column to truncate.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    cells = [[cell(value) for value in row] for row in rows]
    for index, header in enumerate(headers):
        width = max([len(header), *[row[index].cell_len for row in cells]])
        made.add_column(
            header,
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
    return Text(number(value) if isinstance(value, float) else str(value))


def status(word: str) -> Text:
    """Return a status in its colour."""
    return Text(word, style=STATUS_STYLES.get(word, ""))

"""Tables without boxes: they look the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from timonel.styles import STATUS_STYLES, number

__all__ = ["STATUS_STYLES", "cell", "number", "pairs", "status", "table"]


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, wide: int = 0) -> Table:
    """Return a table; only the column numbered ``wide`` may be cut where space is short.

    Args:
        headers: The names of the columns, in capitals by custom.
        rows: Texts, rich texts, numbers; None is shown as a dash.
        wide: The column that gives way.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    cells = [[cell(value) for value in row] for row in rows]
    for index, header in enumerate(headers):
        width = max([len(header), *[row[index].cell_len for row in cells]])
        made.add_column(
            header,
            # Only a column that may wrap is made narrower; its cells are cut, not wrapped.
            no_wrap=index != wide,
            min_width=len(header) if index == wide else width,
        )
    for row in cells:
        row[wide].no_wrap, row[wide].overflow = True, "ellipsis"
        made.add_row(*row)
    return made


def pairs(values: Mapping[str, Any]) -> Table:
    """Return names and values in two columns."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in values.items():
        made.add_row(name, cell(value))
    return made


def cell(value: Any) -> Text:
    """Return a value as it stands in a table."""
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", style="dim")
    return Text(number(value) if isinstance(value, float) else str(value))


def status(word: str) -> Text:
    """Return a state in its colour."""
    return Text(word, style=STATUS_STYLES.get(word, ""))

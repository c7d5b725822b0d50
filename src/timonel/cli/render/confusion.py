"""Confusion matrix for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

_MOST_LABELS = 20


def confusion_table(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> RenderableType:
    """Return counts by true label (rows) and predicted label (columns).

    Correct predictions are green, wrong ones red; zero is a dot. Of many labels, only the
    `_MOST_LABELS` most confused are shown.
    """
    shown = _worth_showing(matrix) if len(labels) > _MOST_LABELS else list(range(len(labels)))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("true \\ said", style="dim")
    for column in shown:
        table.add_column(labels[column], justify="right")
    for row in shown:
        table.add_row(labels[row], *[_cell(row, column, matrix) for column in shown])
    return table


def _cell(row: int, column: int, matrix: Sequence[Sequence[int]]) -> Text:
    count = matrix[row][column]
    if not count:
        return Text("·", style="dim")
    return Text(str(count), style="green" if row == column else "bold red")


def _worth_showing(matrix: Sequence[Sequence[int]]) -> list[int]:
    size = range(len(matrix))
    wrong = {
        label: sum(matrix[label][other] + matrix[other][label] for other in size if other != label)
        for label in size
    }
    worst = sorted(size, key=lambda label: wrong[label], reverse=True)[:_MOST_LABELS]
    return sorted(worst)

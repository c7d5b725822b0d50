"""Render datasets as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from timonel.cli.render.tables import pairs, table
from timonel.cli.render.view import MOMENT, Field, View

if TYPE_CHECKING:
    from timonel.data import Dataset, DatasetSummary
    from timonel.tracking import Artifact, RunRecord

_MOST_ROWS = 24


def dataset_page(report: DatasetSummary) -> RenderableType:
    """Render a dataset's report, shortened if it has many labels."""
    rows = list(report.rows)
    if len(rows) > _MOST_ROWS:
        left_out = len(rows) - _MOST_ROWS
        rows = [*rows[: _MOST_ROWS - 1], (f"and {left_out} more", *[""] * 4), rows[-1]]
    columns = list(report.columns)
    if len(columns) > _MOST_ROWS:  # those with a note first
        columns = sorted(columns, key=lambda column: not column[3])[:_MOST_ROWS]
        columns.append((f"and {len(report.columns) - _MOST_ROWS} more", "", "", ""))
    warnings = [Text(f"warning: {line}", style="yellow") for line in report.warnings]
    return Group(
        Text(report.title, style="bold"),
        pairs(dict(report.facts)),
        table([name.upper() for name in report.header], rows),
        *([table(["COLUMN", "USE", "VALUES", "NOTE"], columns, wide=3)] if columns else []),
        *warnings,
    )


def dataset_json(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset as JSON: its manifest and URI."""
    return {"uri": dataset.uri, **dataset.manifest.model_dump(mode="json", by_alias=True)}


class Converted(NamedTuple):
    """A dataset, and the last run that wrote it."""

    run: RunRecord
    dataset: Artifact


CONVERTED = View(
    Field(
        "name",
        get=lambda item: item.dataset.name,
        column="NAME",
        shown=lambda item: item.dataset.label,
    ),
    Field("records", get=lambda item: item.dataset.metadata.get("records"), column="RECORDS"),
    Field(
        "digest",
        get=lambda item: item.dataset.digest,
        column="DIGEST",
        shown=lambda item: item.dataset.short_digest,
    ),
    Field("created_at", MOMENT, lambda item: item.run.started_at, column="CREATED"),
    Field("uri", get=lambda item: item.dataset.uri, column="PATH"),
    Field("run", get=lambda item: item.run.id),
    wide="PATH",
)

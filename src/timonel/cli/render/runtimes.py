"""Render the runtime measurements of a model version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from timonel.cli.render.tables import table

if TYPE_CHECKING:
    from timonel.models.evidence import Choice, Evidence


def evidence_page(evidence: Evidence) -> RenderableType:
    """Render the chosen runtime, the reason, and the measured times."""
    style = "bold" if evidence.runtime == "tensorflow" else "bold green"
    head = Text.assemble((evidence.runtime, style), f"  {evidence.reason}")
    if not evidence.measurements:
        return head
    compared = (
        f"milliseconds a request; largest difference {evidence.difference or 0:.1e} of "
        f"{evidence.samples} requests; {evidence.cores} cores"
    )
    ways = list(dict.fromkeys(each.runtime for each in evidence.measurements))
    columns = ("SIGNATURE", "BATCH", "AT A TIME", *(way.upper() for way in ways))
    return Group(head, table(columns, list(_rows(evidence, ways))), Text(compared, style="dim"))


def _rows(evidence: Evidence, ways: Sequence[Choice]) -> Iterator[tuple[Any, ...]]:
    times = {
        (each.signature, each.batch, each.callers, each.runtime): each.milliseconds
        for each in evidence.measurements
    }
    for signature, batch, callers in dict.fromkeys(key[:3] for key in times):
        found = (times.get((signature, batch, callers, way)) for way in ways)
        yield signature, batch, callers, *(None if t is None else f"{t:.3g}" for t in found)

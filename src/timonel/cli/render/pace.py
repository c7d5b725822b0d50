"""Render the training speed of a run's tasks as tables and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from timonel.cli.render.tables import table
from timonel.tracking.pace import Paces, format_ms


def paces_of(events: Iterable[Mapping[str, Any]]) -> Paces:
    """Return the latest speed reports of the tasks."""
    paces = Paces()
    for event in events:
        paces.feed(event)
    return paces


def pace_table(paces: Paces) -> RenderableType:
    """Render each task's speed, and which task slows down the others."""
    rows = [
        (
            pace.task,
            None if pace.examples_per_s is None else f"{pace.examples_per_s:,.0f}",
            None if pace.step_ms is None else format_ms(pace.step_ms),
            None if pace.wait_ms is None else format_ms(pace.wait_ms),
        )
        for pace in paces.tasks
    ]
    made = table(("TASK", "EXAMPLES/S", "COMPUTES A STEP", "THEN WAITS"), rows)
    if paces.slowest is None:
        return made
    return Group(made, Text.assemble(("slowest: ", "yellow"), str(paces.slowest)))


def pace_json(paces: Paces) -> dict[str, Any]:
    """Return the speeds as JSON: ``pace`` and ``slowest``."""
    return {
        "pace": [
            {
                "task": pace.task,
                "examples_per_s": pace.examples_per_s,
                "step_ms": pace.step_ms,
                "wait_ms": pace.wait_ms,
            }
            for pace in paces.tasks
        ],
        "slowest": paces.slowest.task if paces.slowest else None,
    }

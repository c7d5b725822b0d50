"""Render runs: a list, one run in full, comparisons, and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from timonel.cli.render.tables import pairs, printable, sparkline, status, table
from timonel.cli.render.view import MOMENT, SECONDS, STATUS, Field, ValueKind, View
from timonel.styles import number
from timonel.tracking.pace import Paces, format_ms

if TYPE_CHECKING:
    from timonel.tracking import Artifact, RunRecord

_WIDE = 110
_SHOWN_FIRST = ("val_accuracy", "accuracy", "val_loss", "loss")


def run_list(
    runs: Sequence[RunRecord], models: Mapping[str, Sequence[str]], width: int = 120
) -> Table:
    """Render runs as a table, in the given order.

    Args:
        models: The model versions made from each run, by run id.
        width: Width of the terminal in columns; times are left out if it is narrow.
    """
    model = Field(column="MODEL", shown=lambda run: ", ".join(models.get(run.id, ())) or None)
    view = View(*RUN.fields[:-1], model, RUN.fields[-1], wide="RESULT")
    return view.table(runs, without=("STARTED", "TIME") if width < _WIDE else ())


def comparison(runs: Sequence[RunRecord]) -> RenderableType:
    """Render runs side by side, one column each: differing parameters, then metrics."""
    ids = [run.name or run.id for run in runs]
    known = [RUN.facts(run) for run in runs]
    facts = [
        *([("id", *(run.id for run in runs))] if any(run.name for run in runs) else []),
        ("status", *(status(run.status) for run in runs)),
        *((name, *(each[name] for each in known)) for name in ("started", "took")),
    ]
    parts: list[RenderableType] = [table(("", *ids), facts)]
    params = [(name, *values) for name, values in _differing(runs).items()]
    if params:
        parts += [Text(), table(("PARAMETER", *ids), params)]
    else:
        parts += [Text("\nall parameters are the same")]
    if metrics := _last_values(runs):
        parts += [
            Text(),
            table(("METRIC", *ids), [(name, *found) for name, found in metrics.items()]),
        ]
    return Group(*parts)


def comparison_json(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the comparison as JSON: lists in run order, with nulls."""
    return {
        "runs": [run.id for run in runs],
        "params": _differing(runs),
        "metrics": {
            name: [None if value is None else _json_number(value) for value in values]
            for name, values in _last_values(runs).items()
        },
    }


def _differing(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for run in runs for name in run.params)
    values = {name: [run.params.get(name) for run in runs] for name in names}
    return {name: found for name, found in values.items() if len({*map(str, found)}) > 1}


def _last_values(runs: Sequence[RunRecord]) -> dict[str, list[float | None]]:
    names = sorted({name for run in runs for name in run.metrics}, key=_metric_order)
    return {name: [run.metrics.get(name) for run in runs] for name in names}


def result(run: RunRecord) -> str:
    """Return the result of a run in a few words."""
    metrics = run.metrics
    named = [name for name in _SHOWN_FIRST if name in metrics][:2]
    if named:
        return "  ".join(f"{name} {number(metrics[name])}" for name in named)
    if run.status == "failed" and run.message:
        return run.message
    return ", ".join(f"{item.type} {item.label}" for item in run.outputs)


def run_page(run: RunRecord) -> RenderableType:
    """Render one run in full."""
    parts: list[RenderableType] = [
        Text.assemble((run.id, "bold"), "  ", status(run.status)),
        pairs(RUN.facts(run)),
    ]
    if run.params:
        parts += [_title("Parameters"), pairs(run.params)]
    if run.series:
        parts += [_title("Metrics"), _metrics(run)]
    if (paces := paces_of(run.events())).tasks:
        parts += [_title("Pace"), pace_table(paces)]
    if run.inputs:
        parts += [_title("Inputs"), _artifacts(run.inputs)]
    if run.outputs:
        parts += [_title("Outputs"), _artifacts(run.outputs)]
    return Group(*parts)


def run_json(run: RunRecord, *, full: bool = False) -> dict[str, Any]:
    """Return a run as JSON.

    ``full`` adds all values of all metrics, and each task's speed.
    """
    pace = pace_json(paces_of(run.events())) if full else {}
    return RUN.json(run, is_detailed=full) | pace


def _devices(found: Mapping[str, Any]) -> str | None:
    """Describe a job's recorded devices and compute settings."""
    if not found:
        return None
    replicas, threads = found.get("replicas"), found.get("threads")
    compressed = found.get("compress_gradients")
    parts = [
        found.get("strategy"),
        f"{replicas} replicas" if replicas != 1 else "1 replica",
        " ".join(found.get("names") or ()),
        found.get("memory") and f"memory {found['memory']}",
        f"{threads} threads" if threads != 1 else "1 thread",
        found.get("precision"),
        "XLA" if found.get("xla") else None,
        "deterministic" if found.get("deterministic") else None,
        found.get("collectives"),
        f"gradients as {compressed}" if compressed else None,
    ]
    return ", ".join(part for part in parts if part)


def _metrics(run: RunRecord) -> Table:
    rows: list[tuple[Any, ...]] = []
    for name in sorted(run.series, key=_metric_order):
        values = [point.value for point in run.series[name]]
        finite = [value for value in values if math.isfinite(value)] or [math.nan]
        rows.append((name, values[-1], min(finite), max(finite), len(values), sparkline(values)))
    return table(("METRIC", "LAST", "LOWEST", "HIGHEST", "VALUES", "CURVE"), rows, wide=5)


def _metric_order(name: str) -> tuple[str, bool]:
    return name.removeprefix("val_"), name.startswith("val_")


def _artifacts(items: Sequence[Artifact]) -> Table:
    rows = [(item.type, item.label, item.short_digest or None, item.uri) for item in items]
    return table(("TYPE", "NAME", "DIGEST", "WHERE"), rows, wide=3)


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _json_number(value: float) -> float | str:
    # JSON has neither NaN nor infinity.
    return value if math.isfinite(value) else str(value)


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


def _heading(run: RunRecord) -> Any:
    """Return a run's name, or else its script, dim."""
    return run.name or (None if run.script is None else printable(run.script, "dim"))


_METRICS = ValueKind(
    json=lambda found: {name: _json_number(value) for name, value in found.items()}
)
_SERIES = ValueKind(
    json=lambda series: {
        name: [{**vars(point), "value": _json_number(point.value)} for point in points]
        for name, points in series.items()
    }
)
RUN = View(
    Field("id", column="RUN"),
    Field("kind"),
    Field("name", line="name"),
    Field(column="NAME", shown=_heading),
    Field("status", STATUS, column="STATUS"),
    Field("started_at", MOMENT, column="STARTED", line="started"),
    Field("ended_at", MOMENT),
    Field("duration_s", SECONDS, column="TIME", line="took"),
    Field("restarts", line="restarts", shown=lambda run: run.restarts or None),
    Field("message", line="reason"),
    Field("cause"),
    Field("job_id", line="job"),
    Field("params"),
    Field("metrics", _METRICS),
    Field("inputs"),
    Field("outputs"),
    Field("devices", line="devices", shown=lambda run: _devices(run.devices), is_detail=True),
    Field(
        "command",
        get=lambda run: list(run.header.command),
        line="command",
        shown=lambda run: " ".join(run.header.command) or None,
        is_detail=True,
    ),
    Field("environment", get=lambda run: run.header.environment, is_detail=True),
    Field(
        "git",
        get=lambda run: run.header.git,
        line="git commit",
        shown=lambda run: (run.header.git or {}).get("commit"),
        is_detail=True,
    ),
    Field("series", _SERIES, is_detail=True),
    Field("folder", get=lambda run: str(run.folder), line="record"),
    Field(column="RESULT", shown=result),
    wide="RESULT",
)

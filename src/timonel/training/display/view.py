"""Training progress view: finished epochs as lines, the current one live.

A view consumes events of the run and states of the job; it uses no terminal, and no clock other
than the events' times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.text import Text

from timonel.styles import STATUS_STYLES, from_here, number
from timonel.tracking.pace import Paces
from timonel.training.display.roles import role_lines, roles_line, waiting_line
from timonel.units import format_seconds

if TYPE_CHECKING:
    from timonel.engines import JobStatus

_BAR_WIDTH = 24
_BAR_LEAST = 6
_LATER = ("bar", "rate", "eta", "loss")
"""Parts dropped from a long line, in this order; epoch and step stay, metrics get the rest."""


def progress_line(now: Mapping[str, Any], width: int, *, bar: bool = True) -> Text:
    """Return a line with the progress and speed of training; epoch and step may exceed it."""
    parts = _parts(now, bar=bar)
    for name in _LATER:
        if _length(parts) <= width:
            break
        parts.pop(name, None)
    _add_metrics(parts, now.get("metrics") or {}, width)
    if "bar" in parts:
        room = min(_BAR_WIDTH, _BAR_LEAST + width - _length(parts))
        parts["bar"] = _bar(now.get("step", 0), now.get("steps"), room)
    return Text("  ").join(filter(None, parts.values()))


def _parts(now: Mapping[str, Any], *, bar: bool) -> dict[str, Text]:
    step, steps, left = now.get("step", 0), now.get("steps"), now.get("eta_s")
    rate, loss = now.get("examples_per_s"), now.get("loss")
    parts = {
        "epoch": Text.assemble(("epoch ", "dim"), _of(now.get("epoch"), now.get("epochs"))),
        "bar": _bar(step, steps, _BAR_LEAST) if bar and steps else None,
        "step": Text.assemble(("step ", "dim"), _of(step, steps)),
        "loss": _named("loss", loss) if loss is not None else None,
        "metrics": Text(),
        "rate": Text(f"{rate:,.0f} examples/s") if rate is not None else None,
        "eta": Text(f"{format_seconds(left)} left") if left is not None else None,
    }
    return {name: part for name, part in parts.items() if part is not None}


def _add_metrics(parts: dict[str, Text], metrics: Mapping[str, Any], width: int) -> None:
    """Add as many metrics as fit."""
    found: list[Text] = []
    for name, value in metrics.items():
        more = [*found, _named(name, value)]
        if _length(parts) + sum(2 + part.cell_len for part in more) > width:
            break
        found = more
    if found:
        parts["metrics"] = Text("  ").join(found)


def _length(parts: Mapping[str, Text]) -> int:
    shown = [part.cell_len for part in parts.values() if part]
    return sum(shown) + 2 * (len(shown) - 1)


def _bar(step: int, steps: int | None, width: int) -> Text:
    share = min(1.0, step / steps) if steps else 0.0
    full = math.floor(share * width)
    return Text.assemble(("━" * full, "green"), ("━" * (width - full), "bright_black"))


def _named(name: str, value: Any) -> Text:
    return Text.assemble((f"{name} ", "dim"), _number(value))


def _of(part: object, whole: object) -> str:
    return f"{part}/{whole}" if whole is not None else f"{part}"


_BESIDE = ("learning_rate", "staleness_mean", "staleness_max", "dropped_gradients")
"""Metrics about the training process, shown if they fit."""


class TrainingView:
    """Converts events to permanent lines and a live display. Not thread-safe.

    Without a live display, a progress line follows after ``every_s`` seconds without any, unless
    None.
    """

    def __init__(self, width: int = 80, every_s: float | None = None) -> None:
        self._width = width
        self._every_s = every_s
        self._progress: Mapping[str, Any] = {}
        self._pending: Mapping[str, Any] | None = None
        self._epoch_began: float | None = None
        self._last_line: float | None = None
        self._job: JobStatus | None = None
        self._paces = Paces()
        self._spinner = Spinner("dots")

    def feed(self, event: Mapping[str, Any]) -> list[Text]:
        """Process one event; return the lines that it completes."""
        self._paces.feed(event)
        lines = self._lines_of(event)
        if lines or self._last_line is None:
            self._last_line = event["t"]
        return lines

    def job(self, status: JobStatus) -> None:
        """Update the state of the job and its tasks."""
        self._job = status

    def live(self) -> RenderableType:
        """Return the live display of the current state."""
        if not self._progress:
            # Until the first step nothing else moves: TensorFlow loads, the graph is traced.
            line = roles_line(self._job) if self._job is not None else Text()
            line.truncate(max(1, self._width - 2), overflow="ellipsis")
            self._spinner.update(text=line)
            waiting = waiting_line(self._job) if self._job is not None else None
            return self._spinner if waiting is None else Group(self._spinner, waiting)
        return Group(*self.lines())

    def lines(self) -> list[Text]:
        """Return the current epoch, the roles, and the slowest task as lines."""
        lines = [progress_line(self._progress, self._width)] if self._progress else []
        if self._job is not None:
            lines += role_lines(self._job, self._paces, self._width)
        if (slowest := self._paces.slowest) is not None:
            lines.append(Text.assemble(("slowest: ", "yellow"), str(slowest)))
        for line in lines:
            line.truncate(self._width, overflow="ellipsis")
            line.no_wrap = True
        return lines

    def end(self) -> list[Text]:
        """Return lines still pending because no further event will come."""
        return self._flush(None)

    def _lines_of(self, event: Mapping[str, Any]) -> list[Text]:
        kind = event["type"]
        if kind == "metrics" and event.get("checkpoint") is not None:
            # From an evaluator beside training: it belongs to an earlier epoch than the current
            # one.
            return [evaluation_line(event, self._width)]
        if kind == "progress":
            return self._note_progress(event)
        if kind == "metrics" and event.get("epoch") is not None:
            lines = self._flush(None)
            self._pending = event
            return lines
        if kind == "restart":
            lines = [*self._flush(None), _restart_line(event)]
            self._epoch_began = None
            return lines
        line = _remark(event)
        return [] if line is None else [*self._flush(None), line]

    def _note_progress(self, event: Mapping[str, Any]) -> list[Text]:
        lines = self._flush(event)
        if event.get("fit") != self._progress.get("fit") or self._epoch_began is None:
            self._epoch_began = event["t"]
        self._progress = event
        is_due = (
            self._every_s is not None
            and self._last_line is not None
            and event["t"] - self._last_line >= self._every_s
        )
        return [progress_line(event, self._width, bar=False)] if is_due and not lines else lines

    def _flush(self, progress: Mapping[str, Any] | None) -> list[Text]:
        # An epoch's metrics are followed by a progress event with its number in the fit.
        done, self._pending = self._pending, None
        if done is None:
            return []
        took = None if self._epoch_began is None else done["t"] - self._epoch_began
        self._epoch_began = done["t"]
        return [epoch_line(done, progress or self._progress, took, self._width)]


def progress_lines(
    status: JobStatus, events: Iterable[Mapping[str, Any]], width: int = 80
) -> list[Text]:
    """Return current training progress, from all events, as lines; empty after the job's end."""
    if status.state.is_final:
        return []
    view = TrainingView(width)
    for event in events:
        view.feed(event)
    view.job(status)
    return view.lines()


def epoch_line(
    done: Mapping[str, Any], progress: Mapping[str, Any], took_s: float | None, width: int
) -> Text:
    """Format a finished epoch's metrics, which may exceed the width, as a line.

    ``progress`` is the progress event after it, or the last one before it.
    """
    is_same = progress.get("epoch") is not None
    epoch = progress["epoch"] if is_same else done["epoch"] + 1
    epochs = progress.get("epochs")
    digits = len(str(epochs or ""))
    values = dict(done["metrics"])
    rate = values.pop("examples_per_s", None)
    values.pop("step_ms", None)
    beside = {name: values.pop(name) for name in _BESIDE if name in values}
    text = Text.assemble(("epoch ", "dim"), f"{epoch:>{digits}}", (f"/{epochs}" if epochs else ""))
    for name, value in sorted(values.items(), key=lambda item: _order(item[0])):
        text.append(f"  {name} ", style="dim").append(_number(value))
    for extra in (
        format_seconds(took_s) if took_s is not None and took_s >= 0 else None,
        f"{rate:,.0f} examples/s" if isinstance(rate, int | float) else None,
        *(f"{name} {_number(value)}" for name, value in beside.items()),
    ):
        if extra is not None and text.cell_len + 2 + len(extra) <= width:
            text.append(f"  {extra}", style="dim")
    return text


def evaluation_line(event: Mapping[str, Any], width: int) -> Text:
    """Format an evaluator's result for a checkpoint, which may exceed the width, as a line."""
    place = f"epoch {event.get('fit_epoch')}"
    if not event.get("is_epochs_end", True):
        place += f", step {event.get('step')}"
    text = Text.assemble(("evaluated ", "dim"), place)
    for name, value in sorted(event["metrics"].items(), key=lambda item: _order(item[0])):
        text.append(f"  {name} ", style="dim").append(_number(value))
    took = format_seconds(event["seconds"]) if "seconds" in event else ""
    if took and text.cell_len + 2 + len(took) <= width:
        text.append(f"  {took}", style="dim")
    return text


def outcome_line(
    job_id: str, status: str, duration_s: float, metrics: Mapping[str, float], width: int = 80
) -> Text:
    """Format a run's outcome as one line, with metrics that fit."""
    style = STATUS_STYLES.get(status, "")
    text = Text.assemble(
        (job_id, "bold"), " ", (status, style), f" in {format_seconds(duration_s)}"
    )
    for name in _best_known(metrics):
        metric = f"  {name} {number(metrics[name])}"
        if text.cell_len + len(metric) <= width:
            text.append(metric)
    return text


def _best_known(metrics: Mapping[str, float]) -> Sequence[str]:
    for names in (("val_accuracy", "val_loss"), ("accuracy", "loss"), ("val_loss",), ("loss",)):
        if all(name in metrics for name in names):
            return names
    return list(metrics)[:2]


def _restart_line(event: Mapping[str, Any]) -> Text:
    reason = event.get("message") or event.get("cause") or event.get("reason")
    attempt = event.get("generation")
    text = Text("restarted", style="yellow")
    if attempt is not None:
        text.append(f" as generation {attempt}")
    return text.append(f": {reason}") if reason else text


def _remark(event: Mapping[str, Any]) -> Text | None:
    """Return the line to display for a log or profile event."""
    if event["type"] == "log" and event.get("level") == "warning":
        return Text.assemble(("warning: ", "yellow"), str(event.get("message")))
    if event["type"] == "log" and event.get("level") == "info":
        return Text(str(event.get("message")))
    if event["type"] == "profile" and event.get("logdir"):
        return Text.assemble(
            (f"profiled steps {event.get('first_step')} to {event.get('last_step')}: ", "dim"),
            f"tensorboard --logdir {from_here(str(event['logdir']))}",
        )
    return None


def _order(name: str) -> tuple[bool, bool, str]:
    """Sort key: losses before other metrics, training before validation."""
    return name.startswith("val_"), name.removeprefix("val_") != "loss", name


def _number(value: object) -> str:
    return number(value) if isinstance(value, int | float) else str(value)

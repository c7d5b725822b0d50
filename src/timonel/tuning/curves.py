"""Values of a study's objectives, read from a run's events and TensorBoard scalars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timonel.errors import did_you_mean
from timonel.tracking.events import SUMMARIES, EventReader, decode_number
from timonel.tuning.tensorboard import EventSource, ScalarReader

_Points = list[tuple[int, float]]
"""Values by increasing step."""


@dataclass
class LearningCurves:
    """Metric values that a run has recorded so far. For one thread.

    A metric that the run's events lack is looked for among the scalars of the script.

    Args:
        events: The run's file of events; it need not exist yet.
        scalars: Reader of the run's scalars.
    """

    events: Path
    metrics: tuple[str, ...]
    scalars: ScalarReader
    curves: dict[str, _Points] = field(init=False)
    """Steps and values by metric."""
    warnings: list[str] = field(default_factory=list, init=False)
    """Warnings of the run, oldest first."""
    _seen: set[str] = field(default_factory=set, init=False)
    _tags: set[str] = field(default_factory=set, init=False)
    _sources: dict[str, dict[EventSource, _Points]] = field(init=False)

    def __post_init__(self) -> None:
        self._reader = EventReader(self.events)
        self._recorded: dict[str, _Points] = {name: [] for name in self.metrics}
        self._sources = {name: {} for name in self.metrics}
        self.curves = dict(self._recorded)

    def read(self, *, is_final: bool = False) -> None:
        """Read the new values."""
        while events := self._reader.read():
            self._add(events)
        if not all(self._recorded.values()):
            for scalar in self.scalars.read(search=is_final):
                self._tags.add(scalar.tag)
                if scalar.tag in self._sources:
                    curve = self._sources[scalar.tag].setdefault(scalar.source, [])
                    _append(curve, scalar.step, scalar.value)
        for name, recorded in self._recorded.items():
            sources = self._sources[name]
            self.curves[name] = recorded or (sources[max(sources)] if sources else [])

    def last(self) -> dict[str, float]:
        """Return the last value of each metric that has one."""
        return {name: curve[-1][1] for name, curve in self.curves.items() if curve}

    def names(self) -> str:
        """Return the names of all values of the run, as text."""
        metrics = ", ".join(sorted(self._seen)) or "none"
        tags = sorted(self._tags - self._seen)
        return metrics + (f"; TensorBoard scalars: {', '.join(tags)}" if tags else "")

    def closest(self, metric: str) -> str | None:
        """Return a question with the most similar name of a recorded value, or None."""
        return did_you_mean(metric, sorted(self._tags | self._seen))

    def problem(self) -> str | None:
        """Return why the last value of a metric may be missing; None if it is not."""
        broken = self.scalars.problems
        for name, recorded in self._recorded.items():
            sources = self._sources[name]
            for source, why in broken.items():
                if not recorded and (not sources or source == max(sources)):
                    return why
        return None

    def _add(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            if event["type"] == SUMMARIES and isinstance(event.get("folder"), str):
                self.scalars.add_folder(Path(event["folder"]))
            if event["type"] == "log" and event.get("level") == "warning":
                self.warnings.append(str(event.get("message")))
            if event["type"] != "metrics" or not isinstance(event.get("metrics"), dict):
                continue
            self._seen.update(event["metrics"])
            for name, curve in self._recorded.items():
                value = decode_number(event["metrics"].get(name))
                if value is not None:
                    step = event.get("epoch", event.get("step"))
                    _append(curve, len(curve) if step is None else int(step), value)


def _append(curve: _Points, step: int, value: float) -> None:
    """Add a point; a job that restarted repeats steps, and its last values count."""
    while curve and curve[-1][0] >= step:
        curve.pop()
    curve.append((step, value if math.isfinite(value) else math.nan))

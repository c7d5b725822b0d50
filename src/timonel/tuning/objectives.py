"""Objectives of a study, and their values in a run's events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from timonel.tracking.events import EventReader, decode_number

Goal = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Objective:
    """A metric to optimize.

    Args:
        metric: Name of the metric, such as ``val_accuracy``.
        goal: ``maximize`` or ``minimize``.
    """

    metric: str
    goal: Goal = "maximize"

    def better(self, first: float, second: float) -> bool:
        """Return whether the first value is better than the second."""
        return first > second if self.goal == "maximize" else first < second


@dataclass
class LearningCurves:
    """Metric values that a run has recorded so far. For one thread.

    Args:
        events: The run's file of events; it need not exist yet.
        metrics: Names of the metrics to collect.
    """

    events: Path
    metrics: tuple[str, ...]
    curves: dict[str, list[tuple[int, float]]] = field(init=False)
    seen: set[str] = field(default_factory=set, init=False)
    """Names of all metrics of the run."""

    def __post_init__(self) -> None:
        self._reader = EventReader(self.events)
        self.curves = {name: [] for name in self.metrics}

    def read(self) -> None:
        """Read the new events."""
        while events := self._reader.read():
            self._add(events)

    def last(self) -> dict[str, float]:
        """Return the last value of each metric that has one."""
        return {name: curve[-1][1] for name, curve in self.curves.items() if curve}

    def _add(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            if event["type"] != "metrics" or not isinstance(event.get("metrics"), dict):
                continue
            self.seen.update(event["metrics"])
            for name, curve in self.curves.items():
                value = decode_number(event["metrics"].get(name))
                if value is not None:
                    step = event.get("epoch", event.get("step"))
                    _append(curve, len(curve) if step is None else int(step), value)


def _append(curve: list[tuple[int, float]], step: int, value: float) -> None:
    """Add a point; a job that restarted repeats steps, and its last values count."""
    while curve and curve[-1][0] >= step:
        curve.pop()
    curve.append((step, value if math.isfinite(value) else math.nan))

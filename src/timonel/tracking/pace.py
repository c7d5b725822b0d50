"""Training pace of each task, and the slowest task. Pure.

Folds `pace` events. In synchronous training all workers make the same number of steps per second,
so this number identifies no slow worker. The compute time until a worker's gradients are ready, and
the time it then waits for the others' gradients, do.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PACE = "pace"
"""Type of the events."""

SLOWER = 1.2
"""A task counts as slower than the others from this ratio of compute times."""
EVIDENCE_S = 5.0
"""Seconds for which every report of a task must have shown this."""
_STALE_S = 30.0
"""A task without a report for this long, while others reported, is gone."""


@dataclass(frozen=True)
class TaskPace:
    """Training pace of a task, averaged over some time.

    Attributes:
        task: Its name, such as ``worker-1``.
        t: The time of measurement, in Unix seconds.
        examples_per_s: Examples processed per second.
        step_ms: Compute time per step, until its gradients are ready.
        wait_ms: Time per step spent waiting for the others, in synchronous training.
    """

    task: str
    t: float
    examples_per_s: float | None = None
    step_ms: float | None = None
    wait_ms: float | None = None


@dataclass(frozen=True)
class Straggler:
    """Task that slows down the others.

    Attributes:
        task: Its name.
        step_ms: Its compute time per step.
        others_ms: The median compute time of the others.
    """

    task: str
    step_ms: float
    others_ms: float

    def __str__(self) -> str:
        return (
            f"{self.task} computes {format_ms(self.step_ms)} a step, the others "
            f"{format_ms(self.others_ms)}"
        )


class Paces:
    """Latest pace of each task of a job. Not thread-safe."""

    def __init__(self) -> None:
        self._last: dict[str, TaskPace] = {}
        self._slow_since: dict[str, float] = {}
        self._newest = -math.inf

    def feed(self, event: Mapping[str, Any]) -> None:
        """Process an event of the run; a restart discards earlier reports."""
        if event["type"] == "restart":
            self._last.clear()
            self._slow_since.clear()
        elif event["type"] == PACE and isinstance(event.get("task"), str):
            self._take(_parsed(event))

    @property
    def tasks(self) -> tuple[TaskPace, ...]:
        """Latest pace of each task that still trains, ordered by task number."""
        fresh = [pace for pace in self._last.values() if pace.t >= self._newest - _STALE_S]
        return tuple(sorted(fresh, key=lambda pace: _order(pace.task)))

    @property
    def slowest(self) -> Straggler | None:
        """Task that has been clearly slower for a while, or None."""
        found = [
            Straggler(pace.task, pace.step_ms, others)
            for pace in self.tasks
            if pace.step_ms is not None
            and (others := self._others_ms(pace)) is not None
            and pace.t - self._slow_since.get(pace.task, pace.t) >= EVIDENCE_S
        ]
        return max(found, key=lambda slow: slow.step_ms, default=None)

    def _take(self, pace: TaskPace) -> None:
        self._newest = max(self._newest, pace.t)
        self._last[pace.task] = pace
        others = self._others_ms(pace)
        if pace.step_ms is None or others is None or pace.step_ms <= SLOWER * others:
            self._slow_since.pop(pace.task, None)
        else:
            self._slow_since.setdefault(pace.task, pace.t)

    def _others_ms(self, pace: TaskPace) -> float | None:
        others = [
            other.step_ms
            for other in self.tasks
            if other.task != pace.task and other.step_ms is not None
        ]
        return statistics.median(others) if others else None


def format_ms(value: float) -> str:
    """Format milliseconds for display: ``4.2 ms``, ``61 ms``, ``1,250 ms``."""
    return f"{value:.1f} ms" if value < 9.95 else f"{value:,.0f} ms"


def _parsed(event: Mapping[str, Any]) -> TaskPace:
    return TaskPace(
        task=event["task"],
        t=float(event["t"]),
        examples_per_s=_positive(event.get("examples_per_s")),
        step_ms=_positive(event.get("step_ms")),
        wait_ms=_positive(event.get("wait_ms")),
    )


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _order(task: str) -> tuple[str, int]:
    """Return a sort key that puts ``worker-10`` after ``worker-9``."""
    role, number = re.fullmatch(r"(.*?)-?(\d*)", task, re.DOTALL).groups()  # type: ignore[union-attr] # matches all
    return role, int(number or 0)

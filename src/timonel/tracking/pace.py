"""How fast each task trains, and which one holds up the others: `pace` events, folded. Pure.

In synchronous training all workers make the same number of steps a second, so that says nothing of
any of them. What tells them apart is how long each computes before its gradients are there, and how
long it then waits for those of the others.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PACE = "pace"
"""The type of the events."""

SLOWER = 1.2
"""A task is slower than the others if it computes that many times as long."""
EVIDENCE_S = 5.0
"""How long it must have been so, in each of its reports."""
_STALE_S = 30.0
"""A task that has said nothing for so long, while others did, is gone."""


@dataclass(frozen=True)
class TaskPace:
    """How one task trains, on the mean of some time.

    Attributes:
        task: Its name, such as ``worker-1``.
        t: When it was measured, in Unix seconds.
        examples_per_s: Examples that it works through.
        step_ms: What it computes for a step, until its gradients are there.
        wait_ms: What it then waits for the others, where steps are taken together.
    """

    task: str
    t: float
    examples_per_s: float | None = None
    step_ms: float | None = None
    wait_ms: float | None = None


@dataclass(frozen=True)
class Slowest:
    """The task that holds up the others.

    Attributes:
        task: Its name.
        step_ms: What it computes for a step.
        others_ms: What the others do: the one in the middle.
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
    """What the tasks of a job have told of their pace. Not safe for use by several threads."""

    def __init__(self) -> None:
        self._last: dict[str, TaskPace] = {}
        self._slow_since: dict[str, float] = {}
        self._newest = -math.inf

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take an event of the run; a restart of the job makes what was before worthless."""
        if event["type"] == "restart":
            self._last.clear()
            self._slow_since.clear()
        elif event["type"] == PACE and isinstance(event.get("task"), str):
            self._take(_parsed(event))

    @property
    def tasks(self) -> tuple[TaskPace, ...]:
        """The last pace of each task that still trains, in the order of their numbers."""
        fresh = [pace for pace in self._last.values() if pace.t >= self._newest - _STALE_S]
        return tuple(sorted(fresh, key=lambda pace: _order(pace.task)))

    @property
    def slowest(self) -> Slowest | None:
        """The task that has been clearly slower than the others for a while, if one has."""
        found = [
            Slowest(pace.task, pace.step_ms, others)
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
    """Return milliseconds for people: ``4.2 ms``, ``61 ms``, ``1,250 ms``."""
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
    """Sort ``worker-10`` behind ``worker-9``."""
    role, number = re.fullmatch(r"(.*?)-?(\d*)", task, re.DOTALL).groups()  # type: ignore[union-attr] # matches all
    return role, int(number or 0)

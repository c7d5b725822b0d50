"""Traffic history of the last minutes, second by second, for plots.

Each view of the page adds a point; other servers have no cost.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from timonel.serving.status import Code
from timonel.serving.telemetry.monitor import ModelTraffic, Monitor, Recent

POINTS: Final = 300
"""Number of points to keep."""
ALL: Final = ""
"""Key of the traffic of all models together."""
_QUANTILES: Final = (0.5, 0.95, 0.99)
_PERIOD_S: Final = 0.9
"""Shortest time between points: several pages may ask, each once per second."""
_GAP_S: Final = 120.0
"""Longest time of a point. Browsers let pages in the background ask once per minute."""


class TrafficPoint(NamedTuple):
    """Traffic of a model in one interval.

    Rates are per second. Percentiles of the latency and mean times of stages are in milliseconds,
    and None without requests; the mean rows per batch are None without batches.
    """

    rate: float = 0.0
    errors: float = 0.0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    decode: float | None = None
    queue: float | None = None
    compute: float | None = None
    encode: float | None = None
    batch: float | None = None


_QUIET: Final = TrafficPoint()


class TrafficHistory:
    """Traffic points, oldest first. For one thread."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._moments: collections.deque[tuple[float, Mapping[str, TrafficPoint]]] = (
            collections.deque(maxlen=POINTS)
        )
        """Times, and the points of all models with traffic."""
        self._before: Mapping[str, ModelTraffic] = {}
        self._last: Recent | None = None
        self._clock = -math.inf

    def look(self, clock: float, at: float) -> None:
        """Add a point for the time since the last look, unless that is too short or too long.

        Args:
            clock: The current time of a monotonic clock, in seconds.
            at: The current time in seconds since the epoch, for display.
        """
        elapsed = clock - self._clock
        if elapsed < _PERIOD_S:
            return
        now, fresh, points = self._monitor.traffic(), self._fresh(), {}
        for name, traffic in now.items():
            before = self._before.get(name, ModelTraffic())
            if traffic != before:
                mine = [each for each in fresh if name in (ALL, each.key.model)]
                points[name] = point(traffic, before, mine, elapsed)
        if elapsed < _GAP_S:
            self._moments.append((at, points))
        self._before, self._clock = now, clock

    def columns(self, name: str) -> dict[str, Any]:
        """Return the points of a model as columns; of all models for `ALL`."""
        points = [points.get(name, _QUIET) for _, points in self._moments]
        columns = dict(zip(TrafficPoint._fields, zip(*points, strict=True), strict=False))
        return {"at": [at for at, _ in self._moments], **columns}

    def latest(self, name: str) -> TrafficPoint:
        """Return a model's latest point."""
        return self._moments[-1][1].get(name, _QUIET) if self._moments else _QUIET

    def _fresh(self) -> list[Recent]:
        """Return the requests since the last point, as far as still recorded."""
        recent = self._monitor.recent()
        fresh = []
        for each in reversed(recent):
            if each is self._last:
                break
            if each.key.api:
                fresh.append(each)
        self._last = recent[-1] if recent else None
        return fresh


def point(
    now: ModelTraffic, before: ModelTraffic, recent: Sequence[Recent], elapsed: float
) -> TrafficPoint:
    """Compute the traffic between two times."""
    batches = now.batches - before.batches
    answered = [each for each in recent if each.key.code is Code.OK]
    p50, p95, p99 = quantiles([each.seconds for each in answered])
    decode, queue, compute, encode = (
        _milliseconds(_mean(each.stages[stage] for each in answered)) for stage in range(4)
    )
    return TrafficPoint(
        rate=_rounded((now.requests - before.requests) / elapsed),
        errors=_rounded((now.errors - before.errors) / elapsed),
        p50=_milliseconds(p50),
        p95=_milliseconds(p95),
        p99=_milliseconds(p99),
        decode=decode,
        queue=queue,
        compute=compute,
        encode=encode,
        batch=_rounded((now.rows - before.rows) / batches) if batches else None,
    )


def quantiles(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return the 50th, 95th and 99th percentile, each one of the values; None without values."""
    ordered = sorted(values)
    if not ordered:
        return (None,) * len(_QUANTILES)
    last = len(ordered) - 1
    return tuple(ordered[min(last, math.ceil(q * len(ordered)) - 1)] for q in _QUANTILES)


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else _rounded(seconds * 1000)


def _rounded(value: float) -> float:
    # Precise enough for a plot, and short in JSON.
    return float(f"{value:.4g}")

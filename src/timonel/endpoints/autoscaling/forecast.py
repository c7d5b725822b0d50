"""Predictive mode: the load of the same time in earlier periods.

The pattern is learned by exponential smoothing over periods. It only ever adds replicas to those
that the load needs, so a wrong forecast costs replicas but no requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from timonel.endpoints.autoscaling.policy import Forecast

SLOTS = 1440
"""Slots per period: minutes of a day."""
_SMOOTHING = 0.5
_COMPARED = 15
"""Number of past slots with which today's level is compared."""


@dataclass(frozen=True)
class Pattern:
    """Average load by slot of the period.

    Args:
        loads: Smoothed average load of each slot; None before the first observation.
        slot: Number of the present slot since the epoch.
        total: Sum of the loads in the present slot.
        count: Number of loads in the present slot.
        ratio: Today's level against the pattern, smoothed over slots.
    """

    loads: tuple[float | None, ...] = field(default=(None,) * SLOTS)
    slot: int = -1
    total: float = 0.0
    count: int = 0
    ratio: float = 1.0

    def observe(self, now: float, load: float, forecast: Forecast) -> Pattern:
        """Add a measurement of the load."""
        slot = math.floor(now * SLOTS / forecast.period_s)
        if slot == self.slot:
            return replace(self, total=self.total + load, count=self.count + 1)
        return replace(self._closed(), slot=slot, total=load, count=1)

    def expected(self, now: float, forecast: Forecast) -> float | None:
        """Return the largest load expected within the lead time; None if nothing is known."""
        first = math.floor(now * SLOTS / forecast.period_s)
        last = math.floor((now + forecast.lead_s) * SLOTS / forecast.period_s)
        ahead = [self.loads[slot % SLOTS] for slot in range(first, last + 1)]
        known = [load for load in ahead if load is not None]
        return max(known) * self.ratio if known else None

    def _closed(self) -> Pattern:
        """Return the pattern with the present slot's average."""
        if not self.count:
            return self
        average, index = self.total / self.count, self.slot % SLOTS
        before = self.loads[index]
        learned = average if before is None else before + _SMOOTHING * (average - before)
        ratio = self.ratio
        if before:
            # A day without the usual load, such as a holiday, soon starts nothing ahead.
            level = min(1.0, average / before)
            ratio += (level - ratio) / _COMPARED
        loads = (*self.loads[:index], learned, *self.loads[index + 1 :])
        return replace(self, loads=loads, ratio=ratio)

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
_LEAST = 0.01
"""Load, in replicas, that is worth the start of the first one."""
_NEIGHBOURS = 2
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
            return Pattern(self.loads, slot, self.total + load, self.count + 1, self.ratio)
        return replace(self._closed(), slot=slot, total=load, count=1)

    def expected(self, now: float, forecast: Forecast) -> float | None:
        """Return the load expected after the lead time, if any."""
        # Averages are those of the middle of a slot.
        place = (now + forecast.lead_s) * SLOTS / forecast.period_s - 0.5
        slot = math.floor(place)
        before, after = self._typical(slot), self._typical(slot + 1)
        if before is None or after is None:
            return None
        return (before + (after - before) * (place - slot)) * self.ratio

    def replicas(self, now: float, forecast: Forecast, load_per_replica: float) -> int:
        """Return the number of replicas to have ready after the lead time."""
        needed = (self.expected(now, forecast) or 0.0) / load_per_replica
        # Rounded down: rounding up would add a part of a replica all day, as the load varies.
        return math.floor(needed) if needed >= 1 else int(needed >= _LEAST)

    def _typical(self, slot: int) -> float | None:
        """Return the median of a slot and its neighbours.

        Requests that waited for replicas in an earlier period must not count as load.
        """
        near = range(slot - _NEIGHBOURS, slot + _NEIGHBOURS + 1)
        known = sorted(load for each in near if (load := self.loads[each % SLOTS]) is not None)
        return known[len(known) // 2] if known else None

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

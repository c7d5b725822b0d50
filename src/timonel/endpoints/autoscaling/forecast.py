"""Predictive mode: forecast the load from the same time in earlier periods.

The pattern is learned by exponential smoothing over periods. A forecast can only add replicas, so a
wrong one costs resources but never requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from timonel.endpoints.autoscaling.policy import Forecast

SLOTS = 1440
"""Slots per period: minutes of a day."""
_SMOOTHING = 0.5
_LEAST = 0.01
"""Smallest forecast load, in replicas, for which a first replica is started."""
_NEIGHBOURS = 2
_COMPARED = 15
"""Number of past slots that today's level is estimated from."""


@dataclass(frozen=True)
class Pattern:
    """Average load by slot of the period.

    Args:
        loads: Smoothed average load of each slot; None before the first observation.
        ratio: Today's load relative to the pattern, smoothed over slots.
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
        """Return the number of replicas needed after the lead time."""
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
        """Return the pattern updated with the average of the current slot."""
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

"""Averages of a metric over a sliding window of time buckets.

As in Knative, missing buckets inside the window count as zero. A window that has just begun, or
whose newest buckets are missing, is averaged over its existing buckets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Aggregation = Literal["linear", "weighted-exponential"]
_MIN_SMOOTHING = 0.2
_WEIGHT_SUM = 0.9999
_PRECISION = 1e6


@dataclass(frozen=True)
class Window:
    """Sums of a metric per bucket.

    Args:
        bucket_s: Length of a bucket, in seconds.
        sums: Sums of the recorded buckets, newest last; at most ``size``.
        newest: Number of the newest bucket: its start divided by ``bucket_s``.
    """

    size: int
    bucket_s: float = 1.0
    sums: tuple[float, ...] = ()
    newest: int = 0

    @classmethod
    def of(cls, window_s: float, bucket_s: float = 1.0) -> Window:
        """Return an empty window, rounded up to whole buckets."""
        return cls(max(1, math.ceil(window_s / bucket_s)), bucket_s)

    def record(self, now: float, value: float) -> Window:
        """Add a value; values older than the window are ignored."""
        bucket, sums = math.floor(now / self.bucket_s), self.sums
        ahead = bucket - self.newest
        if not sums or ahead >= self.size:
            return Window(self.size, self.bucket_s, (value,), bucket)
        if ahead > 0:
            grown = (*sums, *(0.0,) * (ahead - 1), value)
            return Window(self.size, self.bucket_s, grown[-self.size :], bucket)
        if ahead <= -self.size:
            return self
        padded = (0.0,) * (1 - ahead - len(sums)) + sums
        at = len(padded) - 1 + ahead
        return replace(self, sums=(*padded[:at], padded[at] + value, *padded[at + 1 :]))

    def average(self, now: float, aggregation: Aggregation = "linear") -> float | None:
        """Return the average per bucket; None without any data.

        A linear average is rounded down to a millionth, as in Knative.
        """
        late = max(0, math.floor(now / self.bucket_s) - self.newest)
        if not self.sums or late > self.size:
            return None
        valid = self.sums[late - self.size :] if late < self.size else ()
        if not valid:
            return 0.0
        if aggregation == "linear":
            return math.floor(sum(valid) / len(valid) * _PRECISION) / _PRECISION
        smoothing = max(1 - (1 - _WEIGHT_SUM) ** (1 / self.size), _MIN_SMOOTHING)
        weight = smoothing * (1 - smoothing) ** late
        total = 0.0
        for value in reversed(valid):
            total += value * weight
            weight *= 1 - smoothing
        return total

    def resized(self, window_s: float) -> Window:
        """Return the window with another length; the newest buckets are kept."""
        size = Window.of(window_s, self.bucket_s).size
        return self if size == self.size else replace(self, size=size, sums=self.sums[-size:])

    def age_s(self, now: float) -> float:
        """Return the seconds since the newest bucket ended; infinite without any data."""
        return now - (self.newest + 1) * self.bucket_s if self.sums else math.inf

"""Counts of a version's requests: responses by kind, latencies. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from timonel.endpoints.rollouts.sequential import excludes
from timonel.engines.resources import Observed


class Counts(Observed):
    """Counts over some time.

    Attributes:
        requests: Completed requests.
        errors: Requests that failed: 5xx and the corresponding gRPC codes.
        rejections: Requests that were rejected: 4xx and the corresponding gRPC codes.
        latencies: Histogram: requests by the lower bound of their bucket in milliseconds. A bucket
            has a width of one unit of the second significant digit, and at least 1 ms.
        pairs: Answers compared with those of another version.
        agreements: Compared answers that agreed.
    """

    requests: int = 0
    errors: int = 0
    rejections: int = 0
    latencies: Mapping[int, int] = {}
    pairs: int = 0
    agreements: int = 0

    def __add__(self, other: Counts) -> Counts:
        return self._with(other, 1)

    def __sub__(self, other: Counts) -> Counts:
        return self._with(other, -1)

    def _with(self, other: Counts, sign: int) -> Counts:
        latencies = Counter(self.latencies)
        for lower, count in other.latencies.items():
            latencies[lower] += sign * count
        return Counts(
            requests=self.requests + sign * other.requests,
            errors=self.errors + sign * other.errors,
            rejections=self.rejections + sign * other.rejections,
            latencies={lower: count for lower, count in sorted(latencies.items()) if count},
            pairs=self.pairs + sign * other.pairs,
            agreements=self.agreements + sign * other.agreements,
        )

    @property
    def timed(self) -> int:
        """Requests with a known latency."""
        return sum(self.latencies.values())

    def slower(self, limit_ms: float) -> int:
        """Return the number of requests whose whole bucket is above a limit."""
        return sum(count for lower, count in self.latencies.items() if lower >= limit_ms)

    def quantile_ms(self, share: float) -> float:
        """Return a quantile of the latency; NaN without requests."""
        rest = share * self.timed
        for lower, count in sorted(self.latencies.items()):
            if rest <= count:
                return lower + (upper_ms(lower) - lower) * rest / count
            rest -= count
        return math.nan

    def quantile_bounds_ms(self, share: float, alpha: float) -> tuple[float, float]:
        """Return the confidence sequence of a quantile: valid at all times simultaneously."""
        low, high = 0.0, math.inf
        left = total = self.timed
        for lower, count in sorted(self.latencies.items()):
            # ``left`` requests took at least ``lower``.
            if left > total * (1 - share) and excludes(1 - share, left, total, alpha):
                low = float(lower)
            left -= count
            if left < total * (1 - share) and excludes(1 - share, left, total, alpha):
                return low, float(upper_ms(lower))
        return low, high


def upper_ms(lower: int) -> int:
    """Return the upper bound of a bucket."""
    return lower + int(10 ** max(0, len(str(lower)) - 2))

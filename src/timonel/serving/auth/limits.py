"""How often, and how many at once. Pure; time is an argument."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from timonel.serving.settings.rate import Rate

_MOST_BUCKETS = 10_000


@dataclass(frozen=True)
class Bucket:
    """Tokens that were left at a time, in seconds of a clock that never goes back."""

    tokens: float
    at: float


def take(rate: Rate, bucket: Bucket | None, now: float) -> tuple[Bucket, float]:
    """Take a token out of a bucket.

    Args:
        rate: How it fills up.
        bucket: Its state; none for one that is full.
        now: The time, in seconds of the bucket's clock.

    Returns:
        The new state, and the seconds until there is a token; 0 if one was taken.
    """
    if bucket is None:
        tokens = float(rate.burst)
    else:
        grown = max(0.0, now - bucket.at) * rate.per_s
        tokens = min(float(rate.burst), bucket.tokens + grown)
    if tokens >= 1.0:
        return Bucket(tokens - 1.0, now), 0.0
    return Bucket(tokens, now), (1.0 - tokens) / rate.per_s


class Throttle:
    """A bucket for each name. Not thread-safe.

    The names come from clients, so only the ones used last are kept.

    Args:
        rate: How each bucket fills up; none lets everything through.
        most: How many buckets are kept.
    """

    def __init__(self, rate: Rate | None, most: int = _MOST_BUCKETS) -> None:
        self._rate = rate
        self._most = most
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, name: str, now: float) -> float:
        """Take a token for ``name``; return the seconds to wait, 0 if it was granted."""
        if self._rate is None:
            return 0.0
        bucket, wait_s = take(self._rate, self._buckets.pop(name, None), now)
        self._buckets[name] = bucket
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return wait_s


class Slots:
    """How many requests are under way, on all skins together. Not thread-safe.

    Args:
        most: The limit; none for no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.taken = 0

    def take(self) -> bool:
        """Take a slot if there is one; whoever gets it must `give` it back."""
        if self._most is not None and self.taken >= self._most:
            return False
        self.taken += 1
        return True

    def give(self) -> None:
        """Give a slot back."""
        self.taken -= 1

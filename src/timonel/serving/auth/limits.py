"""Rate and concurrency limits. Pure; time is an argument."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from timonel.serving.settings.auth import Rate

_MOST_BUCKETS = 10_000


@dataclass(frozen=True)
class TokenBucket:
    """Tokens left in a bucket at a time of a monotonic clock."""

    tokens: float
    at: float


def take(rate: Rate, bucket: TokenBucket | None, now: float) -> tuple[TokenBucket, float]:
    """Take a token from a bucket.

    Args:
        rate: The refill rate and the capacity.
        bucket: The state; None for a full bucket.
        now: The time, in seconds of the bucket's clock.

    Returns:
        The new state, and the seconds until a token is available; 0 if one was taken.
    """
    if bucket is None:
        tokens = float(rate.burst)
    else:
        grown = max(0.0, now - bucket.at) * rate.per_s
        tokens = min(float(rate.burst), bucket.tokens + grown)
    if tokens >= 1.0:
        return TokenBucket(tokens - 1.0, now), 0.0
    return TokenBucket(tokens, now), (1.0 - tokens) / rate.per_s


class Throttle:
    """A token bucket per name. Not thread-safe.

    Clients choose the names, so only the most recently used buckets are kept.

    Args:
        rate: The rate of each bucket; None for no limit.
        most: The maximum number of buckets.
    """

    def __init__(self, rate: Rate | None, most: int = _MOST_BUCKETS) -> None:
        self._rate = rate
        self._most = most
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, name: str, now: float) -> float:
        """Take a token for ``name``.

        Returns:
            The seconds to wait; 0 if a token was taken.
        """
        if self._rate is None:
            return 0.0
        bucket, wait_s = take(self._rate, self._buckets.pop(name, None), now)
        self._buckets[name] = bucket
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return wait_s


class ConcurrencyLimit:
    """Limit on concurrent requests of all protocols together. Not thread-safe.

    Args:
        most: The limit; None for no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.taken = 0

    def take(self) -> bool:
        """Take a slot if one is free.

        The caller must `give` it back.
        """
        if self._most is not None and self.taken >= self._most:
            return False
        self.taken += 1
        return True

    def give(self) -> None:
        """Release a slot."""
        self.taken -= 1

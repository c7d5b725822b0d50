"""Backoff before restarts. Pure: clocks are arguments."""

from __future__ import annotations

from collections import deque


def backoff_s(restart: int, first_s: float, max_s: float) -> float:
    """Return the delay in seconds before a restart.

    Args:
        restart: Number of the restart in a row, from 1.
        first_s: Delay before the second one. The first has none; later delays double.
    """
    if restart == 1:
        return 0.0
    # The exponent is bounded because 2.0 ** 1024 overflows.
    return min(max_s, first_s * 2.0 ** min(restart - 2, 64))


class CrashBackoff:
    """Backoff before restarts of a process, by its crashes within a time window.

    Args:
        window_s: Time in seconds after which a crash no longer counts.
        first_s: See `backoff_s`.
        max_s: See `backoff_s`.
    """

    def __init__(
        self, *, window_s: float = 300.0, first_s: float = 0.5, max_s: float = 10.0
    ) -> None:
        self.window_s = window_s
        self._first_s = first_s
        self._max_s = max_s
        self._crashes: deque[float] = deque()

    @property
    def count(self) -> int:
        """Number of crashes in the window that ends with the last one."""
        return len(self._crashes)

    def add(self, now: float) -> float:
        """Record a crash, and return the delay in seconds before the restart.

        Args:
            now: Seconds of a monotonic clock.
        """
        while self._crashes and now - self._crashes[0] >= self.window_s:
            self._crashes.popleft()
        self._crashes.append(now)
        return backoff_s(len(self._crashes), self._first_s, self._max_s)

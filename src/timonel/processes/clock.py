"""Clock for deadlines that are also shown and stored."""

from __future__ import annotations

import time


class SteadyClock:
    """Time of day in seconds since the epoch, unaffected by changes of the clock meanwhile."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Return the time."""
        return self._offset_s + time.monotonic()

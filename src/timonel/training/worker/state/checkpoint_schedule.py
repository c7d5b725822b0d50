"""Schedule of checkpoints within an epoch.

Pure except for its clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from timonel.training.settings import CheckpointPolicy


class Due:
    """Schedule of checkpoints within an epoch.

    Args:
        policy: Interval in steps and seconds.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self, policy: CheckpointPolicy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._last = clock()

    def saved(self) -> None:
        """Record that a checkpoint is saved now."""
        self._last = self._clock()

    def by_steps(self, before: int, now: int) -> bool:
        """Whether a checkpoint is due between two step counts of the call."""
        every = self._policy.checkpoint_steps
        return every is not None and now // every > before // every

    def by_clock(self) -> bool:
        """Whether the interval in seconds has passed since the last checkpoint."""
        every = self._policy.checkpoint_seconds
        return every is not None and self._clock() - self._last >= every

"""When a checkpoint is due besides the ends of epochs. Pure but for its clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from timonel.training.settings import CheckpointPolicy


class Due:
    """When the next checkpoint is due.

    Args:
        policy: After how many steps and seconds.
        clock: Seconds that only grow.
    """

    def __init__(
        self, policy: CheckpointPolicy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._last = clock()

    def saved(self) -> None:
        """Note that one is saved now."""
        self._last = self._clock()

    def by_steps(self, before: int, now: int) -> bool:
        """Tell whether one is due between two numbers of steps of the call."""
        every = self._policy.checkpoint_steps
        return every is not None and now // every > before // every

    def by_clock(self) -> bool:
        """Tell whether so many seconds have passed since the last one."""
        every = self._policy.checkpoint_seconds
        return every is not None and self._clock() - self._last >= every

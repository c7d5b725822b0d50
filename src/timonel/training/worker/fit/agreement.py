"""Agreement of all tasks on when to save, stop or leave; barrier before they exit.

State can be saved, and the job left, only when all workers are at the same step. About once a
second, at the same step, every worker sends its requests to the others; the chief sets the number
of steps until the next exchange, as the tasks' clocks differ. A single process needs no exchange:
it handles requests at the end of the current step.

Other processes request actions by a file named after the action in ``<job folder>/requests``: an
empty file, or one with the number of the ``fit`` call that it concerns. The chief checks the folder
at each exchange and removes the files.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

Exchange = Callable[[Sequence[float]], Sequence[float]]
"""Maps this worker's numbers to their sums over all workers."""

INTERVAL_S = 1.0
"""Approximate interval between exchanges."""

_GROWTH = 4
"""Maximum growth factor of the distance between exchanges."""


class TaskAction(Enum):
    """Actions that can be requested from a task."""

    SAVE = "save"
    LEAVE = "leave"
    """Save the state and exit with code 75, to be restarted."""
    STOP = "stop"
    """End this ``fit`` call as if ``model.stop_training`` had been set."""
    FAIL = "fail"
    """End the job because the loss is NaN or infinite."""


@dataclass(eq=False)
class Agreement:
    """Pending requests. Signal handlers and other threads may call `ask`."""

    exchange: Exchange | None = None  # sums the workers' numbers; None for one worker
    _: KW_ONLY
    is_chief: bool = True
    requests: Path | None = None  # the folder that other processes write to
    clock: Callable[[], float] = time.monotonic
    _pending: set[TaskAction] = field(default_factory=set)
    _fit: int = 0
    _boundary: int = 0
    _next: int = 1
    _last: tuple[int, float] | None = None
    _look_at: float = 0.0

    @property
    def pending(self) -> frozenset[TaskAction]:
        """This task's requests that are not agreed on yet."""
        return frozenset(self._pending)

    def ask(self, action: TaskAction) -> None:
        """Request an action at the next common step."""
        self._pending.add(action)

    def begin(self, fit: int = 0) -> None:
        """Begin ``fit`` call number ``fit``: all workers exchange at its first boundary."""
        self._fit = fit
        self._boundary, self._next, self._last = 0, 1, None

    def pace_changes(self) -> None:
        """Exchange at the next boundary, as the time between boundaries changes."""
        # The distance to the next exchange was computed for the previous pace: fast training steps,
        # then a slow validation, or the other way round.
        self._next, self._last = self._boundary + 1, None

    def is_due(self) -> bool:
        """Tell whether the next boundary has an exchange or a request."""
        if self.exchange is not None:
            return self._boundary + 1 >= self._next
        return bool(self._pending) or self.clock() >= self._look_at

    def at_boundary(self, actions: Sequence[TaskAction] = ()) -> frozenset[TaskAction]:
        """Return the actions for all tasks. All workers must call this equally often."""
        due = self.is_due()
        self._boundary += 1
        if not due:
            return frozenset()
        requested = {*self._pending, *actions, *self._requested()}
        self._pending -= requested
        return frozenset(requested) if self.exchange is None else self._agree(requested)

    def _agree(self, requested: set[TaskAction]) -> frozenset[TaskAction]:
        assert self.exchange is not None
        following = self._next_exchange() if self.is_chief else 0
        numbers = self.exchange(
            [*(float(action in requested) for action in TaskAction), float(following)]
        )
        self._next = round(numbers[-1])
        return frozenset(
            action for action, sum_ in zip(TaskAction, numbers, strict=False) if sum_ > 0
        )

    def _next_exchange(self) -> int:
        """Return the boundary of the next exchange, about `INTERVAL_S` from now."""
        now = self.clock()
        before, self._last = self._last, (self._boundary, now)
        if before is None:
            return self._boundary + 1
        passed, took_s = self._boundary - before[0], max(now - before[1], 1e-6)
        target = int(passed * INTERVAL_S / took_s)
        return self._boundary + max(1, min(target, passed * _GROWTH))

    def _requested(self) -> set[TaskAction]:
        self._look_at = self.clock() + INTERVAL_S
        if self.requests is None or not self.is_chief or not self.requests.is_dir():
            return set()
        return {action for action in TaskAction if self._take(self.requests / action.value)}

    def _take(self, path: Path) -> bool:
        """Consume a request file; tell whether it concerns the current call."""
        try:
            words = path.read_text().split()
            path.unlink(missing_ok=True)
        except OSError:
            return False  # no such request
        return not words or words[0] == str(self._fit)


def exchange_over(strategy: Any) -> Exchange:
    """Return a function that sums numbers over the strategy's workers; traced once."""
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    share = 1.0 / max(1, len(strategy.extended.worker_devices))

    @tf.function  # type: ignore[untyped-decorator] # TensorFlow has no types
    def add(values: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(tf.identity, args=(values,)), axis=None)

    def exchange(numbers: Sequence[float]) -> Sequence[float]:
        # Each local replica contributes a fraction; float64 represents large step counts.
        values = tf.constant([number * share for number in numbers], tf.float64)
        return [float(number) for number in add(values).numpy()]

    return exchange


def wait_for_all(strategy: Any) -> None:
    """Wait until every task has arrived here, or a peer has left."""
    # A peer may finish the collective's last step and exit before this task has read its part.
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    try:
        exchange_over(strategy)([1.0])
    except tf.errors.OpError as error:
        logger.info("a peer exited first: %s", type(error).__name__)

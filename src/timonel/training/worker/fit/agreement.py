"""What all tasks of a job do at the same step, though only one of them was asked to.

State can be saved, and the job left, only where all workers stand at the same step. At some steps,
about once a second, every worker tells the others what it was asked for; the chief says after how
many more that happens next, as the others' clocks differ. One process needs none of this: it does
at the end of a step what it was asked for during it.

What is outside the process asks by a file of the wish's name in ``<job folder>/requests``: an empty
one, or one with the number of the ``fit`` call that it concerns. The chief looks there at each of
these steps and removes what it has found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

Exchange = Callable[[Sequence[float]], Sequence[float]]
"""Takes this worker's numbers, gives their sums over all workers."""

INTERVAL_S = 1.0
"""About how often workers agree."""

_GROWTH = 4
"""The distance to the next one is at most so many times the last one."""


class Wish(Enum):
    """What a task may be asked for."""

    SAVE = "save"
    LEAVE = "leave"
    """Save the state and end with exit code 75, to be started again."""
    STOP = "stop"
    """End this ``fit`` call as if ``model.stop_training`` had been set."""
    FAIL = "fail"
    """The loss is no number."""


class Agreement:
    """What was asked for and not done yet. `ask` may be called from signal handlers and threads.

    Args:
        exchange: Adds up the workers' numbers; None for one worker.
        is_chief: Whether this task says when the next exchange is.
        requests: The folder in which others ask.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        exchange: Exchange | None = None,
        *,
        is_chief: bool = True,
        requests: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exchange = exchange
        self._is_chief = is_chief
        self._requests = requests
        self._clock = clock
        self._asked: set[Wish] = set()
        self._fit = 0
        self._boundary = 0
        self._next = 1
        self._last: tuple[int, float] | None = None
        self._look_at = 0.0

    @property
    def asked(self) -> frozenset[Wish]:
        """What this task was asked for and has not been agreed on yet."""
        return frozenset(self._asked)

    def ask(self, wish: Wish) -> None:
        """Ask for something at the next step at which all can do it."""
        self._asked.add(wish)

    def begin(self, fit: int = 0) -> None:
        """Begin ``fit`` call number ``fit``: all workers agree at its first boundary."""
        self._fit = fit
        self._boundary, self._next, self._last = 0, 1, None

    def pace_changes(self) -> None:
        """Note that boundaries come at another pace now: all workers agree at the next one.

        The distance to the next exchange was counted in boundaries of the pace before: fast steps
        of training, then a slow validation, or the other way round.
        """
        self._next, self._last = self._boundary + 1, None

    def is_due(self) -> bool:
        """Tell whether the next boundary is one at which workers agree, or something was asked."""
        if self._exchange is not None:
            return self._boundary + 1 >= self._next
        return bool(self._asked) or self._clock() >= self._look_at

    def at_boundary(self, wishes: Sequence[Wish] = ()) -> frozenset[Wish]:
        """Return what all tasks do now; all workers call this equally often.

        Args:
            wishes: What this task wishes besides, such as what its clock says.
        """
        due = self.is_due()
        self._boundary += 1
        if not due:
            return frozenset()
        asked = {*self._asked, *wishes, *self._requested()}
        self._asked -= asked
        return frozenset(asked) if self._exchange is None else self._agree(asked)

    def _agree(self, asked: set[Wish]) -> frozenset[Wish]:
        assert self._exchange is not None
        following = self._following() if self._is_chief else 0
        numbers = self._exchange([*(float(wish in asked) for wish in Wish), float(following)])
        self._next = round(numbers[-1])
        return frozenset(wish for wish, sum_ in zip(Wish, numbers, strict=False) if sum_ > 0)

    def _following(self) -> int:
        """Return the next boundary to agree at: about `INTERVAL_S` from now."""
        now = self._clock()
        before, self._last = self._last, (self._boundary, now)
        if before is None:
            return self._boundary + 1
        passed, took_s = self._boundary - before[0], max(now - before[1], 1e-6)
        wanted = int(passed * INTERVAL_S / took_s)
        return self._boundary + max(1, min(wanted, passed * _GROWTH))

    def _requested(self) -> set[Wish]:
        self._look_at = self._clock() + INTERVAL_S
        if self._requests is None or not self._is_chief or not self._requests.is_dir():
            return set()
        return {wish for wish in Wish if self._take(self._requests / wish.value)}

    def _take(self, path: Path) -> bool:
        """Take a request that is there; tell whether it concerns the present call."""
        try:
            words = path.read_text().split()
            path.unlink(missing_ok=True)
        except OSError:
            return False  # there is none
        return not words or words[0] == str(self._fit)


def exchange_over(strategy: Any) -> Exchange:
    """Return what adds up numbers over the workers of a strategy; made once, traced once.

    Args:
        strategy: A ``tf.distribute.MultiWorkerMirroredStrategy``.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    share = 1.0 / max(1, len(strategy.extended.worker_devices))

    @tf.function  # type: ignore[untyped-decorator] # TensorFlow has no types
    def add(values: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(tf.identity, args=(values,)), axis=None)

    def exchange(numbers: Sequence[float]) -> Sequence[float]:
        # Each local replica contributes its part; float64 counts any number of steps.
        values = tf.constant([number * share for number in numbers], tf.float64)
        return [float(number) for number in add(values).numpy()]

    return exchange

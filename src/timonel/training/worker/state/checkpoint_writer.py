"""When checkpoints within an epoch are due, and the thread that writes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from timonel.training.settings import CheckpointPolicy


@dataclass(eq=False)
class Due:
    """Schedule of checkpoints within an epoch."""

    policy: CheckpointPolicy
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.saved()

    def saved(self) -> None:
        """Record that a checkpoint is saved now."""
        self._last = self.clock()

    def by_steps(self, before: int, now: int) -> bool:
        """Whether a checkpoint is due between two step counts of the call."""
        every = self.policy.checkpoint_steps
        return every is not None and now // every > before // every

    def by_clock(self) -> bool:
        """Whether the interval in seconds has passed since the last checkpoint."""
        every = self.policy.checkpoint_seconds
        return every is not None and self.clock() - self._last >= every


_THREAD = "timonel-checkpoint"


class BackgroundWriter:
    """Runs one task at a time in a thread; its error is raised by the next `submit` or `wait`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Wait for the previous task, then start ``work``."""
        self.wait()
        # Not a daemon: a process that exits by itself waits for its checkpoint.
        self._thread = threading.Thread(target=self._run, args=(work,), name=_THREAD)
        self._thread.start()

    def drain(self) -> None:
        """Wait for the task in flight; keep its error for `wait`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def wait(self) -> None:
        """Wait for the task in flight, and raise its error."""
        self.drain()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error


def is_writing() -> bool:
    """Whether a checkpoint is being written; callable from any thread."""
    return any(thread.name == _THREAD for thread in threading.enumerate())

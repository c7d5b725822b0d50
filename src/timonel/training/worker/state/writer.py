"""Write checkpoints in a background thread, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

_THREAD = "timonel-checkpoint"


class BackgroundWriter:
    """Runs one task at a time in a background thread.

    Used from one thread. Errors of the task are raised by the next call of `submit` or `wait`.
    """

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
    """Whether a checkpoint is being written.

    Callable from any thread.
    """
    return any(thread.name == _THREAD for thread in threading.enumerate())

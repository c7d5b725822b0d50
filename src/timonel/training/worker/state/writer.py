"""Publishing beside training: one thread, at most one checkpoint in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable

_THREAD = "timonel-checkpoint"


class BackgroundWriter:
    """Carries out one piece of work at a time beside its caller.

    Used from one thread. What the work raises surfaces in the next call of `submit` or `wait`.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Wait for the work before, then begin ``work``."""
        self.wait()
        # No daemon: a process that ends by itself ends after its checkpoint.
        self._thread = threading.Thread(target=self._run, args=(work,), name=_THREAD)
        self._thread.start()

    def drain(self) -> None:
        """Return once nothing is in flight any more; what it raised is kept for `wait`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def wait(self) -> None:
        """Return once nothing is in flight any more."""
        self.drain()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the work is waited for
            self._error = error


def is_writing() -> bool:
    """Tell whether a checkpoint of this process is in flight. May be called from any thread."""
    return any(thread.name == _THREAD for thread in threading.enumerate())

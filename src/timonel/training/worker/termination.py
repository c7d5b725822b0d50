"""SIGTERM handling: exit at once, or after a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

PATIENCE_S = 15.0
"""Time limit for finishing a step and saving before a task exits."""


class Terminated(BaseException):
    """Raised on SIGTERM, where the process can exit."""


class Termination:
    """SIGTERM handler and its state.

    Python runs signal handlers between two bytecodes, so a running step is finished first.
    """

    def __init__(self) -> None:
        self.requested = False
        self.is_leaving = False
        """Whether the exit has begun."""
        self._ask: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None

    def install(self) -> None:
        """Handle SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._handle)

    def ignore_more(self) -> None:
        """Ignore further SIGTERMs while exiting."""
        self.is_leaving = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    @contextlib.contextmanager
    def deferred(self, ask: Callable[[], None]) -> Iterator[None]:
        """Make the first SIGTERM in this block only call ``ask``.

        After `PATIENCE_S`, or on a second SIGTERM, the process exits as usual. Leaving the block
        after a SIGTERM raises `Terminated`.

        Args:
            ask: Called from the signal handler.
        """
        self._ask = ask
        try:
            yield
            if self.requested:
                raise Terminated
        finally:
            self._ask = None
            if self._timer is not None:
                self._timer.cancel()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        ask, self._ask = self._ask, None
        first, self.requested = not self.requested, True
        if ask is not None and first:
            ask()
            self._timer = threading.Timer(PATIENCE_S, os.kill, (os.getpid(), signal.SIGTERM))
            self._timer.daemon = True
            self._timer.start()
            return
        self.ignore_more()
        raise Terminated

"""Leaving when SIGTERM comes: at once, or where somebody has saved what is to be saved."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

PATIENCE_S = 15.0
"""How long a step may take at whose end the state is saved before a task leaves."""


class Terminated(BaseException):
    """SIGTERM came: the process is to leave at the next place where it can."""


class Termination:
    """Leaves when SIGTERM comes, and knows that it has come.

    Python calls a handler between two bytecodes: a step that is being computed is finished first.
    """

    def __init__(self) -> None:
        self.requested = False
        self.is_leaving = False
        """Whether the end has begun."""
        self._ask: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None

    def install(self) -> None:
        """Handle SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._handle)

    def ignore_more(self) -> None:
        """Let nothing disturb the end that has begun."""
        self.is_leaving = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    @contextlib.contextmanager
    def deferred(self, ask: Callable[[], None]) -> Iterator[None]:
        """Let the first SIGTERM in this block only call ``ask``: somebody leaves in good order.

        Who has not left after `PATIENCE_S`, or is asked a second time, leaves as anywhere else.
        Whoever has been asked does not get out of the block.

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

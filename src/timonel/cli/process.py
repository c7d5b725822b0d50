"""Process-wide setup of a command: streams, Ctrl-C and ``kill``."""

from __future__ import annotations

import io
import signal
import sys
import time
from types import FrameType

_HURRY_S = 1.0
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def begin() -> None:
    """Prepare the process for a command."""
    for stream in (sys.stdout, sys.stderr):
        # Not every encoding has the characters of bars and curves; '?' replaces missing ones.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # SIGTERM ends a command like Ctrl-C: it stops its job and drains its server.
    interrupt = _Interrupt()
    for number in INTERRUPTS:
        signal.signal(number, interrupt)


def end() -> None:
    """Suppress interrupts after a command has finished."""
    # All output is written; a traceback from the interpreter's shutdown would be useless.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Interrupt:
    """Signal handler that interrupts at the first Ctrl-C and ignores rapid repeats.

    Repeats would interrupt the cleanup that the first one started.
    """

    def __init__(self) -> None:
        self._overlooks_until = 0.0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now < self._overlooks_until:
            return
        self._overlooks_until = now + _HURRY_S
        raise KeyboardInterrupt

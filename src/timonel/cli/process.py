"""What a command does to a process that is its own: streams, Ctrl-C and ``kill``."""

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
        # Bars and curves are not in every encoding; a terminal that lacks them shows '?'.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # 'kill' is to end a command as Ctrl-C does: with its job stopped and its server drained.
    interrupt = _Interrupt()
    for number in INTERRUPTS:
        signal.signal(number, interrupt)


def end() -> None:
    """Let nothing be said after the last word of a command."""
    # All is said and tidied up; a traceback of the interpreter's end would tell nobody anything.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Interrupt:
    """Ends the command at the first Ctrl-C, and overlooks those that follow in a hurry.

    They would break off the tidying up that the first one has begun.
    """

    def __init__(self) -> None:
        self._overlooks_until = 0.0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now < self._overlooks_until:
            return
        self._overlooks_until = now + _HURRY_S
        raise KeyboardInterrupt

"""SIGTERM handling: exit at once, after a checkpoint, or out of a hanging collective.

Python runs signal handlers between two bytecodes of the main thread, which a hanging collective
never reaches. A process that receives a second SIGTERM has nothing to wait for, so a watchdog
thread (`watch_peers`) ends it once no other thread is active.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from timonel.engines.base import EXIT_RETRYABLE

PATIENCE_S = 15.0
"""Time limit for finishing a step and saving before a task exits."""


class Terminated(BaseException):
    """Raised on SIGTERM, where the process can exit."""


class Termination:
    """SIGTERM handler and its state. A running step is finished before Python calls it."""

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
        """Make the first SIGTERM in this block only call ``ask``, from the signal handler.

        After `PATIENCE_S`, or on a second SIGTERM, the process exits as usual. Leaving the block
        after a SIGTERM raises `Terminated`.
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


_LOOK_S = 0.02
_LOOKS = 5
"""Consecutive checks that must find all threads asleep."""
_THREADS = Path("/proc/self/task")


def watch_peers(is_leaving: Callable[[], bool], is_writing: Callable[[], bool]) -> None:
    """Start the watchdog; call it from the main thread.

    It ends the process unless the main thread is already leaving, or another thread is writing data
    worth waiting for.
    """
    if not _THREADS.is_dir():
        return  # not Linux: the engine kills hanging tasks eventually
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(
        target=_watch, args=(reader, is_leaving, is_writing), name="timonel-stuck", daemon=True
    ).start()


def _watch(reader: int, is_leaving: Callable[[], bool], is_writing: Callable[[], bool]) -> None:
    signals = 0
    while signals < 2:
        signals += os.read(reader, 64).count(signal.SIGTERM)
    quiet = 0
    while not is_leaving():
        quiet = 0 if is_writing() or not all_others_sleep() else quiet + 1
        if quiet == _LOOKS:
            _leave()
        time.sleep(_LOOK_S)


def all_others_sleep() -> bool:
    """Tell whether no other thread runs, or waits for a processor or a disk."""
    own = str(threading.get_native_id())
    return all(_state(thread) == "S" for thread in _THREADS.iterdir() if thread.name != own)


def _state(thread: Path) -> str:
    try:
        # The name in parentheses may contain spaces and parentheses.
        return (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "S"  # the thread has ended


def _leave() -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(EXIT_RETRYABLE)

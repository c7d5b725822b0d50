"""Leaving where the main thread waits inside TensorFlow for a peer that is gone.

Python calls a signal's handler between two bytecodes of the main thread, and a collective never
comes back to those. Whoever is told a second time to leave (see `Termination`) has nothing to wait
for, so a thread beside ends the process, once it is plain that nothing happens in it any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from timonel.engines.base import EXIT_RETRYABLE

_LOOK_S = 0.02
_LOOKS = 5
"""So many looks in a row must find all threads asleep."""
_THREADS = Path("/proc/self/task")


def watch(is_leaving: Callable[[], bool], is_writing: Callable[[], bool]) -> None:
    """Leave from now on where the main thread cannot; call it there.

    Args:
        is_leaving: Whether the main thread is at it.
        is_writing: Whether another thread writes something that is worth waiting for.
    """
    if not _THREADS.is_dir():
        return  # not Linux: what is stuck is killed in the end
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(
        target=_watch, args=(reader, is_leaving, is_writing), name="timonel-stuck", daemon=True
    ).start()


def _watch(reader: int, is_leaving: Callable[[], bool], is_writing: Callable[[], bool]) -> None:
    told = 0
    while told < 2:
        told += os.read(reader, 64).count(signal.SIGTERM)
    quiet = 0
    while not is_leaving():
        quiet = 0 if is_writing() or not all_others_sleep() else quiet + 1
        if quiet == _LOOKS:
            _leave()
        time.sleep(_LOOK_S)


def all_others_sleep() -> bool:
    """Tell whether no thread but this one computes, or waits for a processor or a disk."""
    own = str(threading.get_native_id())
    return all(_state(thread) == "S" for thread in _THREADS.iterdir() if thread.name != own)


def _state(thread: Path) -> str:
    try:
        # The name in parentheses may hold blanks and parentheses itself.
        return (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "S"  # it has ended


def _leave() -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(EXIT_RETRYABLE)

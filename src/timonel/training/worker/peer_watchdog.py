"""Exit if the main thread hangs in TensorFlow after losing a peer.

Python runs signal handlers between two bytecodes of the main thread, which a hanging collective
never reaches. A process that receives a second SIGTERM (see `Termination`) has nothing to wait for,
so a watchdog thread ends it once no other thread is active.
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
"""Consecutive checks that must find all threads asleep."""
_THREADS = Path("/proc/self/task")


def watch(is_leaving: Callable[[], bool], is_writing: Callable[[], bool]) -> None:
    """Start the watchdog; call it from the main thread.

    Args:
        is_leaving: Whether the main thread is already exiting.
        is_writing: Whether another thread is writing data worth waiting for.
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
    """Tell whether all other threads sleep.

    None of them runs or waits for a processor or a disk.
    """
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

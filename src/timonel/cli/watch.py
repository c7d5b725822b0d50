"""Follow the log of a running server for the versions that it loads and unloads."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from timonel.engines.logs import LogTail

_POLL_S = 0.5
_CHANGE = re.compile(r"\S+ \S+ [A-Z]+ [\w.]+: ((?:Loaded|Unloaded|Cannot load) version .*)")


@contextlib.contextmanager
def following(log: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """During the block, call ``tell`` with each line about a version, from the log's start."""
    tail, stop = LogTail("server", log), threading.Event()

    def follow() -> None:
        is_last = False
        while not is_last:
            is_last = stop.wait(_POLL_S)
            for line in tail.read():
                if match := _CHANGE.fullmatch(line.text):
                    tell(match[1])

    thread = threading.Thread(target=follow, name="watch", daemon=True)
    # Block signals in the thread: a signal that another thread receives does not wake the one that
    # waits for the server's end.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield
    finally:
        stop.set()
        thread.join()

"""The heartbeat of a task: a thread that touches ``alive`` in the task's folder once a second.

It shows that the process gets on as a whole, however long a step or a compilation takes. One that
is stopped, or in which something holds Python's lock for good, gives no beat any more, and is taken
for hung.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path

BEAT_S = 1.0


def begin(task_dir: Path) -> None:
    """Beat from now on; call it once the task is up.

    The heartbeat ends, and its file goes, as the interpreter begins to end: libraries may take
    their time for that, and nothing that could be lost depends on it any more.
    """
    path = task_dir / "alive"
    path.touch()
    over = threading.Event()
    threading.Thread(target=_beat, args=(path, over), name="timonel-alive", daemon=True).start()
    atexit.register(_end, path, over)


def _beat(path: Path, over: threading.Event) -> None:
    while not over.wait(BEAT_S):
        try:
            os.utime(path)
        except FileNotFoundError:
            return  # the folder is gone: nobody looks any more
        except OSError:
            continue  # a file system that is not there for a moment


def _end(path: Path, over: threading.Event) -> None:
    over.set()
    path.unlink(missing_ok=True)

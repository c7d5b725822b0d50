"""Task heartbeat: a thread that touches ``alive`` every second.

It shows that the process is responsive, however long a step or a compilation takes. A process that
is stopped, or whose interpreter lock is held forever, sends no heartbeat and counts as hung.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path

BEAT_S = 1.0


def begin(task_dir: Path) -> None:
    """Tell the engine that the task is up, and start the heartbeat."""
    (task_dir / "ready").touch()
    # The heartbeat ends and its file is removed when the interpreter begins to shut down: libraries
    # may take long for that, and no work can be lost any more.
    path = task_dir / "alive"
    path.touch()
    over = threading.Event()
    threading.Thread(target=_beat, args=(path, over), name="timonel-alive", daemon=True).start()
    atexit.register(path.unlink, missing_ok=True)
    atexit.register(over.set)  # first


def _beat(path: Path, over: threading.Event) -> None:
    while not over.wait(BEAT_S):
        try:
            os.utime(path)
        except FileNotFoundError:
            return  # the folder was removed, so the heartbeat is not needed
        except OSError:
            continue  # the file system is temporarily unavailable

"""A process beside this one for what only TensorFlow can do: started, and ended with this one.

Its command is ``python -m MODULE REQUEST ANSWER``, with two files of JSON.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path


def start(module: str, request: Path, answer: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a process whose output goes to ``log``; pass it to `end` whatever happens."""
    command = [sys.executable, "-P", "-m", module, str(request), str(answer)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, unless it has ended, and leave nothing of it behind."""
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def last_line(log: Path) -> str:
    """Return the last line of a process's output that says something."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"


def end_with_parent() -> None:
    """In the process: end when the one that has started it is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # The parent's end of the standard input closes with it.
    while os.read(0, 1):
        pass
    os._exit(1)

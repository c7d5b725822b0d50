"""Child processes for work that needs TensorFlow.

The command is ``python -m MODULE REQUEST ANSWER``, with two JSON files. The child ends when its
parent does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path


def start(module: str, request: Path, answer: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a process with output to ``log``; always pass it to `end`."""
    command = [sys.executable, "-P", "-m", module, str(request), str(answer)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process if it still runs, and close its standard input."""
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def last_line(log: Path) -> str:
    """Return the last non-empty line of a process's output."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"


def end_with_parent() -> None:
    """In the child: end this process when its parent is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # The parent's end of standard input closes when the parent ends.
    while os.read(0, 1):
        pass
    os._exit(1)

"""A task's output in the terminal: as it comes, but for what TensorFlow says of its own start.

All of it is in the task's log.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import IO, TextIO

_PATIENCE_S = 2.0
# Lines of its C++ code below an error, before and after its logging has begun.
_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|[IWE]\d{4} \d\d:\d\d:\d+"
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    rb"|To enable the following instructions: "
)


def is_noise(line: bytes) -> bool:
    """Tell whether a line is one of TensorFlow's own, and no error that ends it."""
    return _NOISE.match(line) is not None


def says_no_gpu(text: str) -> bool:
    """Tell whether a line is CUDA's error 303: this machine has no driver, so no GPU."""
    return "failed call to cuInit" in text and "(303)" in text


class Output:
    """Copies what a process writes to a log, and what people should see of it to a terminal.

    Args:
        source: The end of a pipe that is read.
        log: The file that everything is appended to.
        shown: Where the rest goes.
    """

    def __init__(self, source: IO[bytes], log: Path, shown: TextIO) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._source = source
        self._log = log
        self._shown = shown
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until all is copied; what some process goes on to write is not waited for."""
        self._thread.join(_PATIENCE_S)

    def _copy(self) -> None:
        with self._log.open("ab", buffering=0) as log:
            for line in iter(self._source.readline, b""):
                log.write(line)
                if not is_noise(line):
                    self._shown.write(line.decode(errors="replace"))
                    self._shown.flush()

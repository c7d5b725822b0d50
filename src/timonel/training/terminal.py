"""Copy a task's output to the terminal without TensorFlow's startup messages.

The task's log contains everything.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import IO, TextIO

_PATIENCE_S = 2.0
# Log lines of TensorFlow's C++ code, before and after its logging is initialized.
_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|[IWE]\d{4} \d\d:\d\d:\d+"
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    rb"|To enable the following instructions: "
)


def is_noise(line: bytes) -> bool:
    """Tell whether a line is one of TensorFlow's own non-fatal log lines."""
    return _NOISE.match(line) is not None


def says_no_gpu(text: str) -> bool:
    """Tell whether a line reports CUDA error 303: no driver, no GPU."""
    return "failed call to cuInit" in text and "(303)" in text


class Output:
    """Copies a process's output to a log and, without noise, a terminal.

    Args:
        source: Read end of a pipe.
        log: The file to append everything to.
        shown: Stream for lines that are not noise.
    """

    def __init__(self, source: IO[bytes], log: Path, shown: TextIO) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._source = source
        self._log = log
        self._shown = shown
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait at most two seconds until all output is copied."""
        self._thread.join(_PATIENCE_S)

    def _copy(self) -> None:
        with self._log.open("ab", buffering=0) as log:
            for line in iter(self._source.readline, b""):
                log.write(line)
                if not is_noise(line):
                    self._shown.write(line.decode(errors="replace"))
                    self._shown.flush()

"""Read and follow the logs of a job's tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from timonel.engines.base import LogLine

POLL_S = 0.1
_CHUNK_BYTES = 1 << 20


class LogTail:
    """Reader of a task's log that yields complete lines as they appear.

    Args:
        path: Its log, which need not exist yet.
    """

    def __init__(self, task_id: str, path: Path, *, only_new: bool = False) -> None:
        self._task_id = task_id
        self._path = path
        self._offset = path.stat().st_size if only_new and path.exists() else 0
        self._rest = b""

    def read(self, *, to_end: bool = False) -> Iterator[LogLine]:
        """Yield the lines completed since the last call.

        Args:
            to_end: The log is complete: also yield a last line without line feed.
        """
        while chunk := self._chunk():
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            yield from map(self._line, lines)
        if to_end and self._rest:
            rest, self._rest = self._rest, b""
            yield self._line(rest)

    def _chunk(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset, os.SEEK_SET)
                chunk = file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(chunk)
        return chunk

    def _line(self, line: bytes) -> LogLine:
        return LogLine(task_id=self._task_id, text=line.rstrip(b"\r").decode(errors="replace"))


def read_logs(tails: Sequence[LogTail]) -> Iterator[LogLine]:
    """Yield the current content, task by task."""
    for tail in tails:
        yield from tail.read(to_end=True)


def follow_logs(tails: Sequence[LogTail], is_over: Callable[[], bool]) -> Iterator[LogLine]:
    """Yield lines as they are written, until the job is over."""
    while True:
        # Checked before reading, so that lines written before the end are still read.
        over = is_over()
        for tail in tails:
            yield from tail.read(to_end=over)
        if over:
            return
        time.sleep(POLL_S)

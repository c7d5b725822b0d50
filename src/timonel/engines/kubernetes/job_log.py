"""Output of all tasks of a job in the bucket: ``jobs/<job>/log/<number>``.

Each line is a task's name, a tab and the text. The coordinator rewrites the last object until it is
large enough, then begins the next one; another coordinator begins one of its own.
"""

from __future__ import annotations

from collections import deque

from timonel.engines.base import LogLine
from timonel.storage.object_store import ObjectStore

SEGMENT_BYTES = 256 << 10


class JobLog:
    """Writes the output of a job's tasks. `flush` is for one thread, `add` for any.

    Args:
        store: The bucket's objects below the workspace's URI.
    """

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self._store = store
        self._folder = f"jobs/{job_id}/log"
        self._new: deque[bytes] = deque()
        self._segment = bytearray()
        self._number: int | None = None
        self._written_bytes = 0

    def add(self, task_id: str, text: str) -> None:
        """Add a line, which `flush` writes."""
        text = text.replace("\n", " ")
        self._new.append(f"{task_id}\t{text}\n".encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Write the new lines, if any; after an error, the next call does."""
        while self._new:
            self._segment += self._new.popleft()
        if len(self._segment) == self._written_bytes:
            return
        if self._number is None:
            _, names = self._store.children(self._folder)
            self._number = max(map(int, filter(str.isdigit, names)), default=0) + 1
        self._store.write(f"{self._folder}/{self._number:06d}", bytes(self._segment))
        self._written_bytes = len(self._segment)
        if self._written_bytes > SEGMENT_BYTES:
            self._number += 1
            self._segment.clear()
            self._written_bytes = 0


class LogReader:
    """Reads the output of a job's tasks. For one thread.

    Args:
        store: The bucket's objects below the workspace's URI.
    """

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self._store = store
        self._folder = f"jobs/{job_id}/log"
        self._offsets: dict[str, int] = {}

    def read(self) -> list[LogLine]:
        """Return the lines written since the last call, in order."""
        lines = []
        # Listed first: all objects but the last one are complete then.
        for name, blob in sorted(self._store.find(self._folder).items()):
            offset = self._offsets.get(name, 0)
            if blob.size != offset:
                content = self._store.read(name)
                self._offsets[name] = len(content)
                lines += content[offset:].split(b"\n")[:-1]
        return [_parsed(line) for line in lines]


def _parsed(line: bytes) -> LogLine:
    task_id, _, text = line.decode(errors="replace").partition("\t")
    return LogLine(task_id=task_id, text=text)

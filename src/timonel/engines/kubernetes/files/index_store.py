"""The coordinator's index of a job's shared files, in the bucket: ``jobs/<job>/files.json``."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

from timonel.engines.kubernetes.files.changes import (
    INLINE_BYTES,
    Change,
    Index,
    Part,
    SharedContents,
    decode_index,
    encode_index,
)
from timonel.errors import CorruptError, NotFoundError, TimonelError
from timonel.storage.object_store import ObjectStore

UNUSED_S = 3600.0
"""Seconds after which an object that no file needs is deleted."""
_LARGEST_MERGED_BYTES = 64 << 20
# Between the versions of two coordinators: the first may have assigned some that it did not save.
_GAP = 1 << 32

logger = logging.getLogger(__name__)


class IndexStore:
    """Numbers the changes of a job's files, and keeps their index. For one thread.

    Args:
        store: The bucket's objects below the workspace's URI.
    """

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self.index = Index()
        self._objects = SharedContents(store, job_id)
        self._store = store
        self._name = f"jobs/{job_id}/files.json"
        self._saved_version = 0
        self._unused: dict[str, float] = {}

    def load(self) -> Index:
        """Read and return the index of an earlier coordinator; empty if there was none.

        To be saved before the first change is numbered.
        """
        try:
            self.index = decode_index(json.loads(self._store.read(self._name)))
        except NotFoundError:
            self.index = Index()
        except ValueError as error:
            raise CorruptError(
                f"{self._store.uri}/{self._name} is not valid JSON",
                hint="submit the job again under another name",
            ) from error
        saved = self.index.version
        self.index.version += _GAP
        self.index.lost.append((saved, self.index.version))
        return self.index

    def save(self) -> None:
        """Write the index, if it has changed."""
        if self._saved_version != self.index.version:
            self._store.write(self._name, json.dumps(encode_index(self.index)).encode())
            self._saved_version = self.index.version

    def add(self, change: Change) -> Change:
        """Number a change and add it to the index; return what all processes must make."""
        self.index.version += 1
        change = replace(change, version=self.index.version)
        before = self.index.files.get(change.name)
        whole = replace(change, is_append=False)
        if change.parts is None:
            self.index.files.pop(change.name, None)
            return change
        if change.is_append and before is not None and before.parts is not None:
            parts = self._merged([*before.parts, *change.parts])
            whole = replace(whole, parts=parts, mode=before.mode)
        self.index.files[change.name] = whole
        return change

    def collect(self, now: float) -> None:
        """Delete objects that no file has needed for `UNUSED_S`; to be called every few minutes."""
        used = {
            self._objects.name(part.digest)
            for change in self.index.files.values()
            for part in change.parts or ()
            if part.data is None
        }
        unused = self._store.find(self._objects.folder).keys() - used
        self._unused = {name: self._unused.get(name, now) for name in unused}
        self._store.delete(name for name in unused if now - self._unused[name] >= UNUSED_S)

    def _merged(self, parts: list[Part]) -> tuple[Part, ...]:
        """Join parts at the end while they are small, or as large as the part before them.

        So a file that grows for days has few parts, and each byte is uploaded a few times.
        """
        while len(parts) > 1 and _is_mergeable(*parts[-2:]):
            try:
                content = b"".join(map(self._objects.read, parts[-2:]))
                parts[-2:] = [self._objects.add(content)]
            except TimonelError as error:
                logger.warning("%s", error)
                break
        return tuple(parts)


def _is_mergeable(first: Part, second: Part) -> bool:
    size = first.size + second.size
    return size <= INLINE_BYTES or (first.size <= second.size and size <= _LARGEST_MERGED_BYTES)

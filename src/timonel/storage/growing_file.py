"""A file that only grows, in a bucket: as parts named by the offset of their first byte.

Each part is created by a conditional request, so an append that another machine's append precedes
is refused. Nothing is kept about what was transferred: both sides are compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from timonel.errors import AlreadyExistsError, CorruptError
from timonel.storage.atomic import append_bytes, aside_dir, write_bytes
from timonel.storage.blobs import Blob, Checksums
from timonel.storage.object_store import ObjectStore

_PART = re.compile(r"(\d{15})\.jsonl")


class DivergedError(AlreadyExistsError):
    """Both this machine and another one continued a file."""


class GrowingFile:
    """A local file of lines and its parts in a bucket. For one process at a time.

    Args:
        store: The bucket's objects.
        path: The local file; it need not exist.
    """

    def __init__(self, store: ObjectStore, folder: str, path: Path) -> None:
        self._store = store
        self._folder = folder
        self.path = path

    def parts(self, blobs: Mapping[str, Blob]) -> list[tuple[int, Blob]]:
        """Return the listed parts with their offsets, in order.

        Args:
            blobs: Objects by name, at least those of the folder.
        """
        prefix = f"{self._folder}/"
        named = (
            (_PART.fullmatch(name.removeprefix(prefix)), blob)
            for name, blob in blobs.items()
            if name.startswith(prefix)
        )
        return sorted(((int(m[1]), blob) for m, blob in named if m), key=lambda part: part[0])

    def part_name(self, start: int) -> str:
        """Return the name of the part that begins at an offset."""
        return f"{self._folder}/{start:015}.jsonl"

    def is_longer(self, blobs: Mapping[str, Blob]) -> bool:
        """Return whether the local file is longer than its parts."""
        return self.size > end_of(self.parts(blobs))

    @property
    def size(self) -> int:
        """Size of the local file; 0 if it does not exist."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def push(self, blobs: Mapping[str, Blob]) -> None:
        """Upload the complete lines that the listed parts lack, as another part."""
        self.check(blobs)
        end = end_of(self.parts(blobs))
        new = self.content(end)
        new = new[: new.rfind(b"\n") + 1]
        if not new:
            return
        try:
            self._store.create(self.part_name(end), new)
        except AlreadyExistsError as error:
            raise self._diverged() from error

    def check(self, blobs: Mapping[str, Blob]) -> None:
        """Check that the local file continues the last of the listed parts."""
        parts = self.parts(blobs)
        if not parts:
            return
        start, blob = parts[-1]
        local = self.content(start, start + blob.size)
        if not _match(local, blob) and local != self._store.read(self.part_name(start)):
            raise self._diverged()

    def pull(self, blobs: Mapping[str, Blob]) -> bool:
        """Make the local file equal to the listed parts; return whether its start differed."""
        parts = self.parts(blobs)
        known = 0
        for start, blob in parts:
            if start != known or not self._has(start, blob):
                break
            known += blob.size
        new = self._downloaded([part for part in parts if part[0] >= known], known)
        if self.size == known:
            append_bytes(self.path, new)
            return False
        write_bytes(self.path, self.content(0, known) + new)
        return True

    def content(self, start: int, end: int | None = None) -> bytes:
        """Return the local content between two offsets."""
        if not self.path.is_file():
            return b""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else max(0, end - start))

    def _has(self, start: int, blob: Blob) -> bool:
        """Return whether the local file has a part's content; reads it if no checksum can tell."""
        local = self.content(start, start + blob.size)
        if blob.md5 is None and blob.crc32c is None and len(local) == blob.size:
            return local == self._store.read(self.part_name(start))
        return _match(local, blob)

    def _downloaded(self, parts: list[tuple[int, Blob]], end: int) -> bytes:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = b""
        with aside_dir(self.path) as aside:
            blobs = {self.part_name(start): blob for start, blob in parts}
            self._store.download({name: aside / name for name in blobs}, blobs)
            for start, _ in parts:
                if start != end + len(new):
                    raise CorruptError(
                        f"{self._store.uri}/{self._folder} is incomplete",
                        hint="an object of that folder was deleted: restore it",
                    )
                new += (aside / self.part_name(start)).read_bytes()
        return new

    def _diverged(self) -> DivergedError:
        return DivergedError(
            f"another machine continued {self._store.uri}/{self._folder}",
            hint=f"stop one of them; the file of this one is {self.path}",
        )


def end_of(parts: list[tuple[int, Blob]]) -> int:
    """Return the offset behind the last part; 0 if there is none."""
    return parts[-1][0] + parts[-1][1].size if parts else 0


def _match(content: bytes, blob: Blob) -> bool:
    sums = Checksums()
    sums.add(content)
    return sums.match(blob)

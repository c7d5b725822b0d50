"""What a process knows of a shared file, and how it finds the file's changes."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from io import BufferedReader, FileIO
from pathlib import Path

from timonel.engines.kubernetes.files.changes import INLINE_BYTES, Change, Part, SharedContents

_CHUNK_BYTES = 16 << 20
_TAIL_BYTES = 4096
# A file may be written again within the granularity of its time stamp.
_RACY_NS = 50_000_000


def has_lines(name: str) -> bool:
    """Whether several processes may append lines to a file."""
    return name.endswith(".jsonl")


def grows(name: str) -> bool:
    """Whether a file usually changes by what is appended to it."""
    return has_lines(name) or "tfevents" in name


@dataclass(frozen=True)
class Fingerprint:
    """Properties of a file that change with its content.

    Copies may have the size and the ``mtime`` of the file that they replace.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    mode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Fingerprint:
        """Return the properties of a file."""
        mode = stat.S_IMODE(status.st_mode) & 0o777
        times = status.st_mtime_ns, status.st_ctime_ns
        return cls(status.st_size, *times, status.st_ino, mode)


@dataclass(frozen=True)
class Draft:
    """A change that was read from a file.

    Attributes:
        name: The file.
        parts: Content; None: it was removed.
        seen: The file as it was read; None: it was removed.
        grown_from: Offset of the new content; None: it replaces all.
        tail: Last bytes of the content, of a file that grows.
        sha: Hash of all content of that file.
        is_upload: Whether the content is the whole file, which is still to be uploaded.
        is_racy: Whether the file may have been changed without a trace since.
    """

    name: str
    parts: tuple[Part, ...] | None = None
    seen: Fingerprint | None = None
    grown_from: int | None = None
    tail: bytes = b""
    sha: hashlib._Hash = field(default_factory=hashlib.sha256)
    is_upload: bool = False
    is_racy: bool = False


@dataclass
class FileRecord:
    """What a process knows of a file.

    Attributes:
        seen: The file as last seen, with the size of the known content; None: it is missing.
        content: Digests of its parts; None: unknown, as of a file that grew.
        tail: Last bytes of the known content, of a file that grows.
        sha: Hash of all known content of that file.
        own: Byte ranges that this process appended.
        is_racy: Whether the file may have been changed without a trace since.
        is_own: Whether this process made the latest change.
        version: Number of the latest change that came from the coordinator.
        pending: Own changes that have not come back from the coordinator.
    """

    seen: Fingerprint | None = None
    content: tuple[str, ...] | None = None
    tail: bytes = b""
    sha: hashlib._Hash = field(default_factory=hashlib.sha256)
    own: list[tuple[int, int]] = field(default_factory=list)
    is_racy: bool = False
    is_own: bool = False
    version: int = 0
    pending: list[Change] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Size of the known content."""
        return self.seen.size if self.seen else 0

    @property
    def order(self) -> tuple[bool, int, int]:
        """Key that sorts files in the order of writing, missing ones last."""
        return (False, self.seen.mtime_ns, self.seen.inode) if self.seen else (True, 0, 0)

    def is_seen(self, status: os.stat_result | None) -> bool:
        """Whether the file is as it was last seen."""
        return self.seen == (None if status is None else Fingerprint.of(status))

    def is_known(self, status: os.stat_result | None) -> bool:
        """Whether the file certainly has the content that was last seen."""
        return self.is_seen(status) and not self.is_racy

    def forget(self) -> None:
        """Forget a file that this process no longer shares, as if it had never been here."""
        self.seen, self.content, self.own = None, None, []
        self.is_racy, self.is_own = False, False

    def learn(self, draft: Draft) -> bool:
        """Update the record from a draft; return whether the file has changed."""
        before, is_change = self.seen, draft.seen != self.seen
        content = None
        if draft.seen is None:
            self.own = []
        elif draft.grown_from is not None:
            is_change = before is None or bool(draft.parts)
            self._claim(draft.grown_from, draft.seen.size)
        else:
            content = tuple(part.digest for part in draft.parts or ())
            is_touched = before is not None and before.mode == draft.seen.mode
            is_change = not (is_touched and content == self.content)
            self.own = [(0, draft.seen.size)] if is_change else self.own
        self.seen, self.content, self.tail, self.sha = draft.seen, content, draft.tail, draft.sha
        self.is_racy, self.is_own = draft.is_racy, self.is_own or is_change
        return is_change

    def adopt(self, path: Path, name: str, parts: Iterable[Part]) -> None:
        """Take over a file that was written with this content, also at another path."""
        self.content = tuple(part.digest for part in parts)
        with path.open("rb") as file:
            self.seen = Fingerprint.of(os.fstat(file.fileno()))
            self.tail = tail_of(file, self.seen.size)
            self.sha = _hash_of(file, self.seen.size if grows(name) else 0)
        self.own, self.is_racy, self.is_own = [], False, False

    def adopt_renamed(self, status: os.stat_result | None) -> None:
        """Take over the status of that file after it was renamed, unless it has changed since."""
        if self.seen and status:
            now = Fingerprint.of(status)
            self.seen = now if replace(now, ctime_ns=self.seen.ctime_ns) == self.seen else self.seen

    def _claim(self, start: int, end: int) -> None:
        if self.own and self.own[-1][1] == start:
            start = self.own.pop()[0]
        if end > start:
            self.own.append((start, end))


def status_of(path: Path) -> os.stat_result | None:
    """Return the status of a regular file; None if there is none."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def is_rewritten(name: str, before: os.stat_result, now: os.stat_result) -> bool:
    """Whether a file has changed other than by appends."""
    if grows(name):
        return before.st_ino != now.st_ino or before.st_size > now.st_size
    return Fingerprint.of(before) != Fingerprint.of(now)


@dataclass(frozen=True)
class Appended:
    """The place of appended content in a file.

    Attributes:
        start: Its offset.
        seen: The file, with the size up to the content's end.
        tail: Last bytes up to there.
    """

    start: int
    seen: Fingerprint
    tail: bytes


def append_to(path: Path, data: bytes, *, lines: bool) -> Appended:
    """Append all or nothing to a file, in one write, which no other append interrupts."""
    with path.open("ab+", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        is_complete = tail_of(file, size)[-1:] in {b"", b"\n"} or data.startswith(b"\n")
        _write_all(file, data if is_complete or not lines else b"\n" + data)
        end = file.tell()
        seen = replace(Fingerprint.of(os.fstat(file.fileno())), size=end)
        tail = tail_of(file, end)
    return Appended(end - len(data), seen, tail)


def _write_all(file: FileIO, data: bytes) -> None:
    """Append all content or nothing: a rest would look like output of a program."""
    written = file.write(data)
    start = file.tell() - written
    try:
        while written < len(data):  # one write has at most 2 GiB
            written += file.write(memoryview(data)[written:])
    except OSError:
        # Unless a program has appended after it.
        if os.fstat(file.fileno()).st_size == start + written:
            file.truncate(start)
        raise


def tail_of(file: BufferedReader | FileIO, end: int) -> bytes:
    """Return the last bytes before an offset."""
    size = min(end, _TAIL_BYTES)
    return os.pread(file.fileno(), size, end - size)


def has_content(path: Path, parts: Iterable[Part]) -> bool:
    """Whether a file has the content of these parts; it is read in blocks."""
    try:
        with path.open("rb") as file:
            return all(_has_part(file, part) for part in parts) and not file.read(1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def matching(file: BufferedReader, parts: Iterable[Part]) -> int:
    """Return how many of these parts a file starts with."""
    count = 0
    for part in parts:
        if not _has_part(file, part):
            break
        count += 1
    return count


def read_draft(
    path: Path,
    name: str,
    record: FileRecord,
    objects: SharedContents,
    status: os.stat_result | None,
    *,
    whole: bool = False,
    to_end: bool = False,
) -> Draft | None:
    """Read the changes of a file; None if it has none, or changed after it was found.

    Args:
        status: The file as it was found; None: it is missing. What is written later is not read.
        whole: Return the whole content, also of a growing file.
        to_end: Return an incomplete last line as well.
    """
    if status is None:
        return Draft(name) if record.seen else None
    try:
        with path.open("rb") as file:
            seen = Fingerprint.of(os.fstat(file.fileno()))
            if is_rewritten(name, status, os.fstat(file.fileno())):
                return None
            start = None if whole or not grows(name) else _known_size(file, record, seen)
            if start is not None:
                lines = has_lines(name) and not to_end
                sha = record.sha.copy() if record.seen else hashlib.sha256()
                parts = tuple(_new_parts(file, start, status.st_size, objects, sha, lines=lines))
                end = start + sum(part.size for part in parts)
                return Draft(name, parts, replace(seen, size=end), start, tail_of(file, end), sha)
            return _whole(name, file, seen)
    except FileNotFoundError:
        return None  # removed meanwhile


def _known_size(file: BufferedReader, record: FileRecord, seen: Fingerprint) -> int | None:
    """Return the size of the known content that a file begins with; None if it was replaced."""
    if record.seen is None:
        return 0
    size = record.size
    if seen.inode != record.seen.inode or seen.size < size or tail_of(file, size) != record.tail:
        return None
    # Of larger files, not all is read again for each line that is appended.
    is_read = seen.size == size or size <= _CHUNK_BYTES
    return size if not is_read or _hash_of(file, size).digest() == record.sha.digest() else None


def _hash_of(file: BufferedReader, end: int) -> hashlib._Hash:
    """Return the hash of the content before an offset."""
    sha, offset = hashlib.sha256(), 0
    while block := os.pread(file.fileno(), min(end - offset, 1 << 20), offset):
        sha.update(block)
        offset += len(block)
    return sha


def _new_parts(
    file: BufferedReader,
    start: int,
    end: int,
    objects: SharedContents,
    sha: hashlib._Hash,
    *,
    lines: bool,
) -> Iterator[Part]:
    """Yield the content between two offsets; of lines only complete ones, each in one part."""
    limit = _CHUNK_BYTES
    while start < end:
        data = os.pread(file.fileno(), min(limit, end - start), start)
        size = data.rfind(b"\n") + 1 if lines else len(data)
        if size:
            yield objects.add(data[:size])
            sha.update(data[:size])
            start += size
        elif len(data) < limit:
            return
        else:
            limit *= 2


def _whole(name: str, file: BufferedReader, seen: Fingerprint) -> Draft | None:
    is_racy = abs(time.time_ns() - seen.ctime_ns) < _RACY_NS
    parts: tuple[Part, ...] = ()
    sha = hashlib.sha256()
    if seen.size > INLINE_BYTES:
        sha = hashlib.file_digest(file, "sha256")
        parts = (Part(seen.size, sha.hexdigest()),)
    elif seen.size:
        data = file.read(INLINE_BYTES + 1)
        sha.update(data)
        parts = (Part(len(data), sha.hexdigest(), data),)
    if (
        Fingerprint.of(os.fstat(file.fileno())) != seen
        or sum(part.size for part in parts) != seen.size
    ):
        return None
    tail = tail_of(file, seen.size) if grows(name) else b""
    is_upload = seen.size > INLINE_BYTES
    return Draft(name, parts, seen, None, tail, sha, is_upload=is_upload, is_racy=is_racy)


def _has_part(file: BufferedReader, part: Part) -> bool:
    sha, left = hashlib.sha256(), part.size
    while left and (block := file.read(min(left, 1 << 20))):
        sha.update(block)
        left -= len(block)
    return not left and sha.hexdigest() == part.digest

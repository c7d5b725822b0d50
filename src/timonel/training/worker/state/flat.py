"""Read and write one large file with little CPU time.

On a small machine, all cores train while a checkpoint is written, so CPU time is what counts. Large
files bypass the page cache, which saves a copy, memory and cache management; the digest is CRC32C,
for which CPUs have an instruction.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import google_crc32c
import numpy as np

from timonel.errors import CorruptError

PREFIX = "crc32c:"
_STAGE = 4 << 20
"""Bytes per write."""
_PAGE = 4096
_DIRECT_FROM = 16 << 20
"""Least size of a file written directly; a restarted job reads smaller ones from the page cache."""
_PIECE = 1 << 18
"""Bytes per checksum call: they fit into the CPU's cache, and limit holding Python's lock."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def write(path: Path, contents: Sequence[Bytes]) -> str:
    """Write ``contents`` in sequence, durably, and return the file's digest."""
    total = sum(map(len, contents))
    direct = getattr(os, "O_DIRECT", 0) if total >= _DIRECT_FROM else 0
    descriptor = _open(path, direct)
    try:
        crc = _write(descriptor, contents)
        os.ftruncate(descriptor, total)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return _digest(crc)


def checksum(array: np.ndarray[Any, Any]) -> str:
    """Return the CRC32C of an array's content."""
    return _digest(_extended(0, np.ascontiguousarray(array).reshape(-1).view(np.uint8)))


class Reader:
    """Sequential reader that checks the digest of `write` at the end."""

    def __init__(self, path: Path, expected: str) -> None:
        self._path = path
        self._expected = expected
        self._crc = 0

    def __enter__(self) -> Self:
        try:
            self._file = self._path.open("rb", buffering=0)
        except OSError as error:
            raise self._corrupt("the file is missing") from error
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def read(self, size: int) -> Bytes:
        """Return the next ``size`` bytes."""
        content = np.empty(size, np.uint8)
        done = 0
        while done < size:
            count = self._file.readinto(content[done : done + _STAGE].data)
            if not count:
                raise self._corrupt(f"{size - done} bytes are missing")
            self._crc = _extended(self._crc, content[done : done + count])
            done += count
        return content

    def check(self) -> None:
        """Check for the end of the file, and the digest."""
        if self._file.read(1):
            raise self._corrupt("it has extra bytes")
        if _digest(self._crc) != self._expected:
            raise self._corrupt(f"its digest is {_digest(self._crc)}, not {self._expected}")

    def _corrupt(self, problem: str) -> CorruptError:
        return CorruptError(
            f"{self._path} is damaged: {problem}",
            hint="the file was changed or truncated: create it again from its source",
        )


def _open(path: Path, direct: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags | direct, 0o666)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)  # a file system without direct I/O


def _write(descriptor: int, contents: Sequence[Bytes]) -> int:
    """Write through a buffer aligned for direct I/O."""
    # Freed with the array. Closing it here would hide a disk-full error behind an error of its own,
    # as that error's frames still hold the array.
    stage: Bytes = np.frombuffer(mmap.mmap(-1, _STAGE), np.uint8)
    crc = filled = 0
    for content in contents:
        done = 0
        while done < len(content):
            count = min(len(content) - done, len(stage) - filled)
            stage[filled : filled + count] = content[done : done + count]
            done, filled = done + count, filled + count
            if filled == len(stage):
                crc = _extended(crc, stage)
                _write_all(descriptor, stage)
                filled = 0
    crc = _extended(crc, stage[:filled])
    # Whole pages; the file is truncated afterwards.
    _write_all(descriptor, stage[: -(-filled // _PAGE) * _PAGE])
    return crc


def _write_all(descriptor: int, content: Bytes) -> None:
    done = 0
    while done < len(content):
        try:
            done += os.write(descriptor, content[done:].data)
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            direct = getattr(os, "O_DIRECT", 0)
            if error.errno != errno.EINVAL or not flags & direct:
                raise
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~direct)


def _extended(crc: int, content: Bytes) -> int:
    for begin in range(0, len(content), _PIECE):
        crc = google_crc32c.extend(crc, content[begin : begin + _PIECE].tobytes())
    return crc


def _digest(crc: int) -> str:
    return f"{PREFIX}{crc:08x}"

"""One large file that is written and read once, at little cost to what computes beside it.

Both cores of a small machine train while a checkpoint is written, so what counts is the processor
time that it takes. A large file goes to the disk past the kernel's cache, which saves a copy, the
memory and the cache's upkeep; its digest is CRC32C, for which processors have an instruction.
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
"""Bytes that are written at once."""
_PAGE = 4096
_DIRECT_FROM = 16 << 20
"""A smaller file stays in the cache, from which a restarted job reads it."""
_PIECE = 1 << 18
"""Bytes of a checksum at once: they stay in the processor's own cache; Python's lock is held."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def write(path: Path, contents: Sequence[Bytes]) -> str:
    """Write ``contents`` behind each other, durably, and return the digest of the file.

    Raises:
        OSError: It cannot be written.
    """
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


class Reader:
    """Reads a file from its beginning and checks its digest at the end.

    Args:
        path: The file.
        expected: What `write` has returned.
    """

    def __init__(self, path: Path, expected: str) -> None:
        self._path = path
        self._expected = expected
        self._crc = 0

    def __enter__(self) -> Self:
        try:
            self._file = self._path.open("rb", buffering=0)
        except OSError as error:
            raise self._corrupt("no file") from error
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def read(self, size: int) -> Bytes:
        """Return the next bytes.

        Raises:
            CorruptError: There are fewer.
        """
        content = np.empty(size, np.uint8)
        done = 0
        while done < size:
            count = self._file.readinto(content[done : done + _STAGE].data)
            if not count:
                raise self._corrupt(f"{size - done} bytes fewer")
            self._crc = _extended(self._crc, content[done : done + count])
            done += count
        return content

    def check(self) -> None:
        """Check that this was all, and that it is what was written.

        Raises:
            CorruptError: It is not.
        """
        if self._file.read(1):
            raise self._corrupt("more bytes")
        if _digest(self._crc) != self._expected:
            raise self._corrupt(_digest(self._crc))

    def _corrupt(self, found: str) -> CorruptError:
        return CorruptError(
            f"expected {self._path} to have digest {self._expected}, found {found}",
            hint="the file was changed or cut off; make it again from its source",
        )


def _open(path: Path, direct: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags | direct, 0o666)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)  # a file system that has it all in the cache


def _write(descriptor: int, contents: Sequence[Bytes]) -> int:
    """Write everything by way of memory that is aligned as the disk wants it."""
    # Freed with the array. To close it here would hide the error of a full disk by one of its own,
    # as that error's frames still hold the array.
    stage: Bytes = np.frombuffer(mmap.mmap(-1, _STAGE), np.uint8)
    return _write_staged(descriptor, contents, stage)


def _write_staged(descriptor: int, contents: Sequence[Bytes], stage: Bytes) -> int:
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
    # Whole pages; what is too much is cut off afterwards.
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

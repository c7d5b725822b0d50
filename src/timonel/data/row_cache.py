"""Cache of preprocessed rows, in memory or in a file on disk.

The file has a CRC-32C (uint32) for each row, then the rows. Rows are written when they are first
computed, in any order. A row that was not written, was written in part, or is damaged fails its
checksum and counts as absent. So processes share a file without locks, and a kill damages nothing.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from timonel.errors import InputError
from timonel.units import format_bytes

_LOG = logging.getLogger(__name__)
_CRC_BYTES = 4
_SUFFIX = ".rows"

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowLayout:
    """Number of rows, and shape and dtype of each array of a row."""

    rows: int
    arrays: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]

    @property
    def widths(self) -> list[int]:
        """Bytes of each array of a row."""
        return [math.prod(shape) * dtype.itemsize for shape, dtype in self.arrays]

    @property
    def bytes(self) -> int:
        """Bytes of the whole cache."""
        return self.rows * (sum(self.widths) + _CRC_BYTES)


class RowCache:
    """Cache of the rows of one layout. Thread-safe, and safe between processes.

    The file descriptor is its own, open for reading and writing.
    """

    def __init__(self, layout: RowLayout, file: int) -> None:
        self._layout = layout
        self._width = sum(layout.widths)
        self._start = layout.rows * _CRC_BYTES
        self._file = file
        self._is_full = False
        # Not at exit, when TensorFlow's threads may still read.
        weakref.finalize(self, os.close, file).atexit = False

    @classmethod
    def in_memory(cls, layout: RowLayout, limit_bytes: int) -> RowCache:
        """Create an empty cache in memory, which is taken as rows are written."""
        if layout.bytes > limit_bytes:
            raise InputError(
                f"the cache needs {format_bytes(layout.bytes)} of memory, more than the limit of "
                f"{format_bytes(limit_bytes)}",
                hint="raise memory=, or use cache=FOLDER on a local disk",
            )
        return cls(layout, os.memfd_create("timonel-rows", os.MFD_CLOEXEC))

    @classmethod
    def on_disk(cls, layout: RowLayout, folder: Path, name: str) -> RowCache:
        """Open or create a cache in a folder."""
        path = folder / f"{name}{_SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            missing = layout.bytes - os.fstat(file).st_blocks * 512
            free = shutil.disk_usage(folder).free
        except OSError as error:
            raise InputError(
                f"cannot write a cache to {folder}: {error.strerror or error}",
                hint="give cache= a folder on a local disk",
            ) from error
        if missing > free:
            os.close(file)
            raise InputError(
                f"the cache needs {format_bytes(missing)} more in {folder}, which has "
                f"{format_bytes(free)} free",
                hint="give cache= a folder on a larger disk, or load smaller images",
            )
        return cls(layout, file)

    def read(self, rows: Rows) -> tuple[npt.NDArray[Any], ...]:
        """Return which rows are present, bool [B], and their arrays [B, ...]; zeros if absent."""
        found = np.zeros(len(rows), bool)
        arrays = [np.zeros((len(rows), *shape), dtype) for shape, dtype in self._layout.arrays]
        for place, row in enumerate(rows.tolist()):
            crc = os.pread(self._file, _CRC_BYTES, row * _CRC_BYTES)
            if crc.strip(b"\0"):
                content = os.pread(self._file, self._width, self._start + row * self._width)
                found[place] = len(content) == self._width and crc == _crc(content)
                if found[place]:
                    _unpack(content, [array[place : place + 1] for array in arrays])
        return found, *arrays

    def write(self, rows: Rows, *arrays: npt.NDArray[Any]) -> None:
        """Write the arrays [B, ...] of rows; on a full disk, only log a warning."""
        if self._is_full:
            return
        flat = [np.ascontiguousarray(each).reshape(len(rows), -1) for each in arrays]
        try:
            for place, row in enumerate(rows.tolist()):
                content = b"".join(each[place].tobytes() for each in flat)
                # A short write leaves a wrong checksum.
                os.pwrite(self._file, content, self._start + row * self._width)
                os.pwrite(self._file, _crc(content), row * _CRC_BYTES)
        except OSError as error:
            self._is_full = True
            _LOG.warning("the cache of rows is incomplete: %s", error.strerror or error)


def _unpack(content: bytes, arrays: Sequence[npt.NDArray[Any]]) -> None:
    offset = 0
    for array in arrays:
        values = np.frombuffer(content, array.dtype, array.size, offset)
        array[...] = values.reshape(array.shape)
        offset += array.nbytes


def _crc(content: bytes) -> bytes:
    crc: int = google_crc32c.value(content)
    return crc.to_bytes(_CRC_BYTES, "little")

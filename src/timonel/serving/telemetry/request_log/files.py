"""TFRecord files that rotate at a size or an age.

A file ends in ``.part`` until it is complete. A record that a full disk truncated is removed, so
that later records can be read.
"""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable
from pathlib import Path

from timonel.data.records import frame

PART = ".part"


class RotatingFile:
    """Writes records to one file after another. Belongs to one thread.

    Args:
        prefix: The start of each file's path.
        max_bytes: The size at which a file is closed.
        max_age_s: The age at which a file is closed.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        prefix: str,
        max_bytes: int,
        max_age_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefix = prefix
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._file: io.FileIO | None = None
        self._path = Path()
        self._size = 0
        self._opened = 0.0
        self._count = 0

    def write(self, payload: bytes) -> None:
        """Append a record.

        Raises:
            OSError: The record cannot be written; the file is unchanged.
        """
        file = self._file or self._open()
        record = b"".join(frame(payload))
        try:
            written = file.write(record)
        except OSError:
            self._take_back(file)
            raise
        if written != len(record):
            # The kernel writes as much as fits, and would fail on the rest.
            self._take_back(file)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size = file.tell()
        if self._size >= self._max_bytes:
            self.close()

    def close_if_old(self) -> None:
        """Close the file if it has reached its maximum age."""
        if self._file is not None and self._clock() - self._opened >= self._max_age_s:
            self.close()

    def close(self) -> None:
        """Close the file, if any, and rename it to its final name.

        Raises:
            OSError: It cannot be renamed.
        """
        if self._file is None:
            return
        file, self._file = self._file, None
        file.close()
        if self._size:
            self._path.rename(str(self._path).removesuffix(PART))
        else:
            self._path.unlink()

    def _open(self) -> io.FileIO:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        self._count += 1
        path = Path(f"{self._prefix}-{stamp}-{os.getpid()}-{self._count}.tfrecord{PART}")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered, so that data rejected by a full disk is not written later.
        self._file = path.open("xb", buffering=0)
        self._path, self._size, self._opened = path, 0, self._clock()
        return self._file

    def _take_back(self, file: io.FileIO) -> None:
        try:
            file.truncate(self._size)
            file.seek(self._size)
        except OSError:
            # The file is readable up to the truncated record; it keeps its temporary name.
            self._file = None
            file.close()

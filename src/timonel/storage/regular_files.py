"""Open the files that users name, but no pipe or device, which could block for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read bytes; an OSError if it is neither regular nor a folder."""
    return open(path, "rb", opener=regular)


def regular(path: str | Path, flags: int = os.O_RDONLY | os.O_CLOEXEC) -> int:
    """Return the descriptor of a file, as `open_regular` does."""
    found = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(found).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return found
    os.close(found)
    raise OSError(errno.EINVAL, "not a regular file", str(path))

"""Memory that was freed."""

from __future__ import annotations

import contextlib
import ctypes


def give_back() -> None:
    """Have memory that was freed leave the process.

    An allocator keeps it for what may come otherwise, in pieces between what is in use: of what
    importing TensorFlow takes, 25 MiB. Takes milliseconds, in which other threads go on.
    """
    # Other C libraries than glibc have no such function.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)

"""Memory that was freed."""

from __future__ import annotations

import contextlib
import ctypes
import os

_ARENA_MAX = -8
"""The parameter of mallopt, as malloc.h has it."""
_ARENAS = 128


def give_back() -> None:
    """Have memory that was freed leave the process.

    An allocator keeps it for what may come otherwise, in pieces between what is in use: of what
    importing TensorFlow takes, 25 MiB. Takes milliseconds, in which other threads go on.
    """
    # Other C libraries than glibc have no such function.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_threads_apart() -> None:
    """Have each thread take its memory from an arena of its own, up to 128 of them.

    By default glibc has 8 a core, after which threads share them: 16 on two cores, where a server
    with TensorFlow has more threads than that. Arenas take address space, and memory only as they
    are used.

    To be called before there are many threads. The environment's own limit holds.
    """
    if os.environ.get("MALLOC_ARENA_MAX") or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    # Other C libraries than glibc have no such function.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, max(_ARENAS, 8 * (os.cpu_count() or 1)))

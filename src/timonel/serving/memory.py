"""Return freed memory to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt, from malloc.h."""
_ARENAS = 2
_MMAP_BYTES, _TRIM_BYTES = 32 * 2**20, 16 * 2**20
"""Size from which blocks are mapped individually, and free memory kept at the end of an arena."""
_LOOK_S = 1.0
_GROWTH_BYTES = 8 * 2**20
_FIRST_RETRY_S, _LAST_RETRY_S = 2.0, 60.0


def give_back() -> None:
    """Release free heap memory to the system (`malloc_trim`); takes milliseconds.

    glibc otherwise keeps freed chunks: importing TensorFlow leaves 25 MiB.
    """
    # C libraries other than glibc lack this function.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def exempt_imports() -> None:
    """Exempt imported modules from garbage collection. Call this before loading models.

    Requests with nested lists trigger full collections, each of which would traverse the million
    objects of TensorFlow's modules. Garbage of models that are loaded later is still collected.
    """
    gc.collect()
    gc.freeze()
    give_back()


def limit_heap() -> None:
    """Have the allocator keep less freed memory. Call this before starting many threads.

    - Threads share two arenas. By default glibc creates up to 8 per core. Each keeps every page
      that one of its blocks still uses, so a server with 15 threads that answers requests of many
      sizes grows by tens of MiB. A limit set in the environment takes precedence.
    - Large blocks are returned as soon as they are freed. By default glibc raises both limits, up
      to 32 and 64 MiB, whenever a larger block is freed. Each thread that has ever parsed a large
      request then keeps up to 64 MiB, which `give_back` does not reach. Mapping each of
      TensorFlow's buffers individually would be slow.
    - A daemon thread trims the heap while it is grown. The allocator keeps the pieces of a request
      of many megabytes, which are freed one by one: hundreds of megabytes after a few requests.
    """
    of_user = os.environ.get("GLIBC_TUNABLES", "")
    if not os.environ.get("MALLOC_ARENA_MAX") and "arena_max" not in of_user:
        _mallopt(_ARENA_MAX, _ARENAS)
    _mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
    _mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
    threading.Thread(target=_trim_when_grown, name="trim", daemon=True).start()


def _trim_when_grown() -> None:
    """Trim when the process has grown, and again later for delayed frees."""
    start = least = _resident_bytes()
    wait_s, waited_s = _FIRST_RETRY_S, 0.0
    never = threading.Event()  # time.sleep fails where libfaketime sets the clock
    while not never.wait(_LOOK_S):
        resident = _resident_bytes()
        waited_s += _LOOK_S
        has_grown = resident > least + _GROWTH_BYTES
        if has_grown or (resident > start + _GROWTH_BYTES and waited_s >= wait_s):
            give_back()
            wait_s = _FIRST_RETRY_S if has_grown else min(2 * wait_s, _LAST_RETRY_S)
            waited_s = 0.0
            resident = least = _resident_bytes()
        least = min(least, resident)


def _resident_bytes() -> int:
    """Return the resident set size of this process; 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _mallopt(parameter: int, value: int) -> None:
    # C libraries other than glibc lack this function.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(parameter, value)

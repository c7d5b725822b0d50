"""Rights of an ordinary user, also for tests that run as root."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522
_OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
_EFFECTIVE = 0


@contextmanager
def limited_rights() -> Iterator[None]:
    """Make permissions of files count in this thread, and in those that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, before = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    limited = (ctypes.c_uint32 * 6)(*before)
    limited[_EFFECTIVE] &= ~_OVERRIDES
    assert libc.capset(header, limited) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0

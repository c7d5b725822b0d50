"""Shared memory without a name: a file descriptor that two processes map.

A `memfd` needs no ``/dev/shm``, which is 64 MiB in a container, and leaves nothing behind: it is
gone when the last process that has mapped it is.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
from numpy.typing import NDArray

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SharedSegment:
    """A stretch of memory that this process has mapped; unmapped when nothing refers to it.

    Args:
        descriptor: The file; it may be closed after this.
        size: Its length in bytes.

    Raises:
        ValueError: The file is shorter, or could be cut, which would end this process at a touch.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("expected shared memory whose size is sealed")
        self.size = size
        self.bytes: NDArray[np.uint8] = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        self.address: int = self.bytes.ctypes.data


def new_segment(size: int) -> tuple[int, SharedSegment]:
    """Return a descriptor of new shared memory, for the caller to close, and the memory itself.

    Pages cost nothing until they are written to.

    Raises:
        OSError: There is no memory, or there are too many open files.
    """
    descriptor = os.memfd_create("timonel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
        return descriptor, SharedSegment(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


class Hold:
    """Keeps a block of shared memory for as long as an array of it is in use.

    Arrays made of `array`, and whatever is sliced or viewed from them, refer to this object. When
    the last of them is gone, the block is given back.

    Args:
        segment: Where it is.
        offset: Its first byte there.
        length: Bytes.
        owner: Told once, from whichever thread that happens in, and in the middle of anything.
        number: The segment's number, for ``owner``.
    """

    __slots__ = ("__array_interface__", "_owner", "number", "offset", "segment")

    def __init__(
        self, segment: SharedSegment, offset: int, length: int, owner: Owner, number: int
    ) -> None:
        if offset < 0 or length < 0 or offset + length > segment.size:
            raise ValueError(f"expected a block within {segment.size} bytes, got {offset}+{length}")
        self.segment = segment
        self.offset = offset
        self.number = number
        self._owner = owner
        self.__array_interface__ = {
            "shape": (length,),
            "typestr": "|u1",
            "data": (segment.address + offset, False),
            "version": 3,
        }

    def array(self) -> NDArray[np.uint8]:
        """Return the block's bytes."""
        return np.asarray(self)

    def __del__(self) -> None:
        # Not there when the arguments were refused.
        owner = getattr(self, "_owner", None)
        if owner is not None:
            owner.give_back(self.number, self.offset)


class Owner:
    """Whoever wants to know that a block is not used any more."""

    def give_back(self, number: int, offset: int) -> None:
        """Note that a block is free. Takes no lock that anybody waits for."""
        raise NotImplementedError


def hold_of(array: object) -> Hold | None:
    """Return what keeps the shared memory that an array is in, if it is in such."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, Hold) else None

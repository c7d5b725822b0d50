"""Anonymous shared memory: a file descriptor that two processes map.

A `memfd` does not need ``/dev/shm``, which is limited to 64 MiB in containers, and needs no
cleanup: it is freed with the last process that maps it.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
from numpy.typing import NDArray

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SharedSegment:
    """A shared memory mapping of this process; unmapped when unreferenced.

    Args:
        descriptor: The file descriptor; it may be closed after this.
        size: Its length in bytes.

    Raises:
        ValueError: The file is shorter, or its size is not sealed: access beyond a truncated file's
            end would kill this process.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("expected shared memory whose size is sealed")
        self.size = size
        self.bytes: NDArray[np.uint8] = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        self.address: int = self.bytes.ctypes.data


def new_segment(size: int) -> tuple[int, SharedSegment]:
    """Create shared memory; return its descriptor and mapping.

    The caller closes the descriptor. Pages use no memory until they are written to.

    Raises:
        OSError: No memory is left, or too many files are open.
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
    """Reference that keeps a block of shared memory in use.

    Arrays returned by `array`, and their slices and views, refer to this object. When the last of
    them is gone, the block is given back.

    Args:
        segment: The segment that contains the block.
        offset: The block's offset in the segment.
        length: Its size in bytes.
        owner: Notified once, by a destructor: in any thread, at any point of its code.
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
        # Missing if the arguments were rejected.
        owner = getattr(self, "_owner", None)
        if owner is not None:
            owner.give_back(self.number, self.offset)


class Owner:
    """Interface for notifications about unused blocks."""

    def give_back(self, number: int, offset: int) -> None:
        """Note that a block is free. Must not wait for a lock."""
        raise NotImplementedError


def hold_of(array: object) -> Hold | None:
    """Return the hold of an array, if in shared memory."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, Hold) else None

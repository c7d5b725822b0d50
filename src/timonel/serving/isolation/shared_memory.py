"""Shared memory that one side of a connection writes and the other reads.

The writer allocates blocks and sends their places; the reader releases them. When all segments
are full, the writer creates another one and sends its file descriptor, up to a limit; then
allocations wait.

Segments are anonymous files (`memfd`). They do not need ``/dev/shm``, which is limited to 64 MiB in
containers, and need no cleanup: they are freed with the last process that maps them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from timonel.serving.status import Code, StatusError

ALIGNMENT = 64
"""Alignment in bytes, with which TensorFlow uses an array without a copy."""
SEGMENT_BYTES = 16 << 20
_IDLE_BYTES = 32 << 20
"""Bytes of empty segments to keep for the next large request."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


Release = Callable[[int, int], None]


class Arena:
    """Blocks that this side writes. Thread-safe.

    Args:
        announce: Called with number, file descriptor (the callee closes it) and size of each new
            segment, before a block of it is allocated.
        retire: Called with the number of each dropped segment; none of its blocks is in use.
        limit_bytes: Maximum total size.
        segment_bytes: Minimum size of a segment.
    """

    def __init__(
        self,
        announce: Callable[[int, int, int], None],
        retire: Callable[[int], None],
        *,
        limit_bytes: int,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._announce = announce
        self._retire = retire
        self._limit_bytes = limit_bytes
        self._segment_bytes = segment_bytes
        self._segments: dict[int, tuple[SharedSegment, Allocator]] = {}
        self._uses: dict[tuple[int, int], int] = {}
        self._released: deque[tuple[int, int]] = deque()
        self._room = threading.Condition(threading.Lock())
        self._closed = False
        self._next = 0

    @property
    def bytes_mapped(self) -> int:
        """Total size of all segments."""
        return sum(segment.size for segment, _ in tuple(self._segments.values()))

    def allocate(self, length: int, timeout_s: float) -> Hold:
        """Allocate a block of ``length`` bytes, aligned to 64 bytes.

        Raises:
            StatusError: It would not fit even into an empty arena, or no memory became free in
                time.
        """
        if aligned(length) > self._limit_bytes:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED,
                f"{length} bytes of tensors exceed the limit of {self._limit_bytes} bytes",
            )
        deadline = time.monotonic() + timeout_s
        with self._room:
            while True:
                self._apply_releases()
                if self._closed:
                    raise StatusError(Code.UNAVAILABLE, "the model's process has ended")
                if (place := self._allocate(length)) is not None:
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StatusError(
                        Code.RESOURCE_EXHAUSTED,
                        f"no shared memory for {length} bytes became free in {timeout_s:g} s",
                    )
                self._room.wait(left)
        self._try_apply_releases()
        number, offset, segment = place
        return Hold(segment, offset, length, self.release, number)

    def owns(self, hold: Hold) -> bool:
        """Return whether a block belongs to this arena."""
        found = self._segments.get(hold.number)
        return found is not None and found[0] is hold.segment

    def share(self, hold: Hold) -> None:
        """Add the other side as user of a block, until released."""
        with self._room:
            if not self._closed:
                self._uses[hold.number, hold.offset] += 1
        self._try_apply_releases()

    def release(self, number: int, offset: int) -> None:
        """Remove a user from a block; a block without users is freed."""
        self._released.append((number, offset))
        self._try_apply_releases()

    def close(self) -> None:
        """Stop all waits. Memory is unmapped when its last array is gone."""
        with self._room:
            self._closed = True
            self._uses.clear()
            self._segments.clear()
            self._room.notify_all()
        self._try_apply_releases()

    def _try_apply_releases(self) -> None:
        # Also called by destructors, in a thread that may already hold this lock: so never wait for
        # the lock; its holder checks again after releasing it.
        while self._released and self._room.acquire(blocking=False):
            try:
                self._apply_releases()
            finally:
                self._room.release()

    def _apply_releases(self) -> None:
        freed = False
        while self._released:
            number, offset = place = self._released.popleft()
            if place not in self._uses:
                continue  # a faulty peer must not affect this side
            self._uses[place] -= 1
            if not self._uses[place]:
                del self._uses[place]
                self._segments[number][1].free(offset)
                freed = True
        if freed:
            self._trim()
            self._room.notify_all()

    def _allocate(self, length: int) -> tuple[int, int, SharedSegment] | None:
        for number, (segment, blocks) in self._segments.items():
            if (offset := blocks.allocate(length)) is not None:
                self._uses[number, offset] = 1
                return number, offset, segment
        size = max(aligned(length), min(self._segment_bytes, self._limit_bytes))
        self._trim(keep_bytes=self._limit_bytes - size)
        if self.bytes_mapped + size > self._limit_bytes:
            return None
        self._add(size)
        return self._allocate(length)

    def _add(self, size: int) -> None:
        try:
            descriptor, segment = new_segment(size)
        except OSError as error:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED,
                f"cannot create shared memory of {size} bytes: {error.strerror}",
            ) from error
        number, self._next = self._next, self._next + 1
        self._segments[number] = (segment, Allocator(size))
        self._announce(number, descriptor, size)

    def _trim(self, keep_bytes: int | None = None) -> None:
        """Drop empty segments above the idle limit, or above ``keep_bytes`` in total."""
        empty = [n for n, (_, blocks) in self._segments.items() if blocks.is_empty]
        idle = sum(self._segments[number][0].size for number in empty)
        # The first one is small and used most, so it is dropped last.
        for number in sorted(empty, reverse=True):
            over = idle > _IDLE_BYTES if keep_bytes is None else self.bytes_mapped > keep_bytes
            if not over:
                return
            idle -= self._segments.pop(number)[0].size
            self._retire(number)


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
    them is gone, the block is released.

    Args:
        segment: The segment that contains the block.
        offset: The block's offset in the segment.
        length: Its size in bytes.
        release: Called once with number and offset, by a destructor: in any thread, at any point of
            its code. It must not wait for a lock.
        number: The segment's number.
    """

    __slots__ = ("__array_interface__", "_release", "number", "offset", "segment")

    def __init__(
        self, segment: SharedSegment, offset: int, length: int, release: Release, number: int
    ) -> None:
        if offset < 0 or length < 0 or offset + length > segment.size:
            raise ValueError(f"expected a block within {segment.size} bytes, got {offset}+{length}")
        self.segment = segment
        self.offset = offset
        self.number = number
        self._release = release
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
        release = getattr(self, "_release", None)
        if release is not None:
            release(self.number, self.offset)


def hold_of(array: object) -> Hold | None:
    """Return the hold of an array, if in shared memory."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, Hold) else None


def aligned(length: int) -> int:
    """Round ``length`` up to a multiple of `ALIGNMENT`; at least one."""
    return max(ALIGNMENT, -(-length // ALIGNMENT) * ALIGNMENT)


class Allocator:
    """First-fit allocator of offsets. Not thread-safe.

    It takes the lowest hole that is large enough, so that the same few pages are reused under low
    load.

    Args:
        size: Bytes, a multiple of `ALIGNMENT`.
    """

    def __init__(self, size: int) -> None:
        if size <= 0 or size % ALIGNMENT:
            raise ValueError(f"expected a multiple of {ALIGNMENT}, got {size}")
        self.size = size
        # Starts of free ranges, ascending and never adjacent, with matching ends.
        self._starts = [0]
        self._ends = [size]
        self._allocated: dict[int, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no block is allocated."""
        return not self._allocated

    @property
    def allocated(self) -> dict[int, int]:
        """Length of each allocated block by offset."""
        return dict(self._allocated)

    def allocate(self, length: int) -> int | None:
        """Allocate ``length`` bytes; return the offset, or None if full."""
        needed = aligned(length)
        for index, start in enumerate(self._starts):
            end = start + needed
            if end <= self._ends[index]:
                if end == self._ends[index]:
                    del self._starts[index], self._ends[index]
                else:
                    self._starts[index] = end
                self._allocated[start] = needed
                return start
        return None

    def free(self, offset: int) -> None:
        """Free a block.

        Raises:
            KeyError: No block begins there.
        """
        start, end = offset, offset + self._allocated.pop(offset)
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == end:
            end = self._ends[index]
            del self._starts[index], self._ends[index]
        if index and self._ends[index - 1] == start:
            self._ends[index - 1] = end
        else:
            self._starts.insert(index, start)
            self._ends.insert(index, end)

"""Shared memory that one side writes and the other reads.

The writer allocates blocks and sends their places; the reader gives them back. When all segments
are full, the writer creates another one and sends its file descriptor, up to a limit; then
allocations wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from timonel.serving.isolation.allocator import Allocator, aligned
from timonel.serving.isolation.shared_memory import Hold, Owner, SharedSegment, new_segment
from timonel.serving.status import Code, StatusError

SEGMENT_BYTES = 16 << 20
_IDLE_BYTES = 32 << 20
"""Bytes of empty segments to keep for the next large request."""


class Arena(Owner):
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
        self._given: deque[tuple[int, int]] = deque()
        self._room = threading.Condition(threading.Lock())
        self._closed = False
        self._next = 0

    @property
    def bytes_mapped(self) -> int:
        """Total size of all segments."""
        return sum(segment.size for segment, _ in tuple(self._segments.values()))

    def take(self, length: int, timeout_s: float) -> Hold:
        """Allocate a block of ``length`` bytes, aligned to 64 bytes.

        Raises:
            StatusError: It would not fit even into an empty arena, or no memory became free in
                time.
        """
        if aligned(length) > self._limit_bytes:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED,
                f"expected at most {self._limit_bytes} bytes of tensors, got {length}",
            )
        deadline = time.monotonic() + timeout_s
        with self._room:
            while True:
                self._settle_locked()
                if self._closed:
                    raise StatusError(Code.UNAVAILABLE, "the model's process has ended")
                if (place := self._place(length)) is not None:
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StatusError(
                        Code.RESOURCE_EXHAUSTED,
                        f"no shared memory for {length} bytes became free in {timeout_s:g} s",
                    )
                self._room.wait(left)
        self._settle()
        number, offset, segment = place
        return Hold(segment, offset, length, self, number)

    def owns(self, hold: Hold) -> bool:
        """Return whether a block belongs to this arena."""
        found = self._segments.get(hold.number)
        return found is not None and found[0] is hold.segment

    def share(self, hold: Hold) -> None:
        """Add the other side as user of a block, until given back."""
        with self._room:
            if not self._closed:
                self._uses[hold.number, hold.offset] += 1
        self._settle()

    def give_back(self, number: int, offset: int) -> None:
        """Remove a user from a block; a block without users is freed."""
        self._given.append((number, offset))
        self._settle()

    def close(self) -> None:
        """Stop all waits. Memory is unmapped when its last array is gone."""
        with self._room:
            self._closed = True
            self._uses.clear()
            self._segments.clear()
            self._room.notify_all()
        self._settle()

    def _settle(self) -> None:
        # Also called by destructors, in a thread that may already hold this lock: so never wait for
        # the lock; its holder checks again after releasing it.
        while self._given and self._room.acquire(blocking=False):
            try:
                self._settle_locked()
            finally:
                self._room.release()

    def _settle_locked(self) -> None:
        freed = False
        while self._given:
            number, offset = place = self._given.popleft()
            if place not in self._uses:
                continue  # a faulty peer must not affect this side
            self._uses[place] -= 1
            if not self._uses[place]:
                del self._uses[place]
                self._segments[number][1].give(offset)
                freed = True
        if freed:
            self._trim()
            self._room.notify_all()

    def _place(self, length: int) -> tuple[int, int, SharedSegment] | None:
        for number, (segment, blocks) in self._segments.items():
            if (offset := blocks.take(length)) is not None:
                self._uses[number, offset] = 1
                return number, offset, segment
        size = max(aligned(length), min(self._segment_bytes, self._limit_bytes))
        self._trim(keep_bytes=self._limit_bytes - size)
        if self.bytes_mapped + size > self._limit_bytes:
            return None
        self._add(size)
        return self._place(length)

    def _add(self, size: int) -> None:
        try:
            descriptor, segment = new_segment(size)
        except OSError as error:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED, f"no shared memory of {size} bytes: {error.strerror}"
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

"""Which parts of a stretch of memory are taken: a first-fit allocator of offsets, no memory in it.

The lowest hole that is large enough is taken, so that the same few pages are used again and again
while there is little to do.
"""

from __future__ import annotations

from bisect import bisect_left

ALIGNMENT = 64
"""Bytes; TensorFlow takes an array without a copy only where it begins on such a boundary."""


def aligned(length: int) -> int:
    """Return ``length`` rounded up to a whole number of alignments; at least one."""
    return max(ALIGNMENT, -(-length // ALIGNMENT) * ALIGNMENT)


class Allocator:
    """The taken and the free parts of ``size`` bytes. Not thread-safe.

    Args:
        size: Bytes, a multiple of `ALIGNMENT`.
    """

    def __init__(self, size: int) -> None:
        if size <= 0 or size % ALIGNMENT:
            raise ValueError(f"expected a multiple of {ALIGNMENT}, got {size}")
        self.size = size
        # Holes ascending by their start, never adjacent; ends beside them.
        self._starts = [0]
        self._ends = [size]
        self._taken: dict[int, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is taken."""
        return not self._taken

    @property
    def taken(self) -> dict[int, int]:
        """Length of each block by its offset."""
        return dict(self._taken)

    def take(self, length: int) -> int | None:
        """Return the offset of a new block of ``length`` bytes; none if there is no room."""
        wanted = aligned(length)
        for index, start in enumerate(self._starts):
            end = start + wanted
            if end <= self._ends[index]:
                if end == self._ends[index]:
                    del self._starts[index], self._ends[index]
                else:
                    self._starts[index] = end
                self._taken[start] = wanted
                return start
        return None

    def give(self, offset: int) -> None:
        """Free a block.

        Raises:
            KeyError: No block begins there.
        """
        start, end = offset, offset + self._taken.pop(offset)
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == end:
            end = self._ends[index]
            del self._starts[index], self._ends[index]
        if index and self._ends[index - 1] == start:
            self._ends[index - 1] = end
        else:
            self._starts.insert(index, start)
            self._ends.insert(index, end)

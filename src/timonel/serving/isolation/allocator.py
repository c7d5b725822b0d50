"""First-fit allocator of offsets; does not access memory.

It takes the lowest hole that is large enough, so that the same few pages are reused under low load.
"""

from __future__ import annotations

from bisect import bisect_left

ALIGNMENT = 64
"""Alignment in bytes, with which TensorFlow uses an array without a copy."""


def aligned(length: int) -> int:
    """Round ``length`` up to a multiple of `ALIGNMENT`; at least one."""
    return max(ALIGNMENT, -(-length // ALIGNMENT) * ALIGNMENT)


class Allocator:
    """Allocated and free blocks of ``size`` bytes. Not thread-safe.

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
        self._taken: dict[int, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no block is allocated."""
        return not self._taken

    @property
    def taken(self) -> dict[int, int]:
        """Length of each allocated block by offset."""
        return dict(self._taken)

    def take(self, length: int) -> int | None:
        """Allocate ``length`` bytes; return the offset, or None if full."""
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

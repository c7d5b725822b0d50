"""Memory for copies of large variables, kept from one checkpoint to the next.

Memory that is new to a process costs far more than what is copied into it: a page fault each, and
on a virtual machine whose host takes back what is free, a page of the host's as well.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_LARGE = 1 << 20
"""Less is taken from what the process has at hand anyway."""
_UNUSED = 2
"""References to a buffer that nobody else has: the variable's that asks, and the question's own."""


class Buffers:
    """Copies values into memory that it has lent before, once nobody looks at that any more."""

    def __init__(self) -> None:
        self._lent: list[Bytes] = []

    def copies(self, values: list[Any]) -> list[Array]:
        """Return a copy of each tensor in host memory.

        Those of the call before stay whole for as long as anybody holds them, or a view of them.

        Args:
            values: Tensors of TensorFlow that are not symbolic.
        """
        free: dict[int, list[Bytes]] = {}
        while self._lent:
            buffer = self._lent.pop()
            if sys.getrefcount(buffer) == _UNUSED:
                free.setdefault(len(buffer), []).append(buffer)
        return [self._copied(value, free) for value in values]

    def _copied(self, value: Any, free: dict[int, list[Bytes]]) -> Array:
        source = _looked_at(value)
        if source is None:
            return np.asarray(value.numpy())
        same = free.get(source.nbytes)
        buffer = same.pop() if same else np.empty(source.nbytes, np.uint8)
        self._lent.append(buffer)
        copy: Array = buffer.view(source.dtype).reshape(source.shape)
        np.copyto(copy, source)
        return copy


def _looked_at(value: Any) -> Array | None:
    """Return a large tensor's own memory, without a copy; None where it has no such."""
    if value.shape.num_elements() * value.dtype.size < _LARGE:
        return None
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError):  # of a type that Python's buffers do not know
        return None

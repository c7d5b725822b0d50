"""Reusable host memory for copies of large variables.

New memory costs far more than copying into it: a page fault per page, and on a virtual machine
whose host reclaims free memory, also a page of the host.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_LARGE = 1 << 20
"""Smaller copies come from the allocator's own memory."""
_UNUSED = 2
"""References to an unused buffer.

The local variable, and the argument of `sys.getrefcount`.
"""


class Buffers:
    """Copies values into buffers that are reused once unreferenced."""

    def __init__(self) -> None:
        self._lent: list[Bytes] = []

    def copies(self, values: list[Any]) -> list[Array]:
        """Return a copy of each tensor in host memory.

        Earlier copies stay valid while anything refers to them or to a view of them.

        Args:
            values: Eager TensorFlow tensors.
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
    """Return a view of a large tensor's memory.

    None if the tensor is small, or its memory not accessible.
    """
    if value.shape.num_elements() * value.dtype.size < _LARGE:
        return None
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError):  # dtypes that the buffer protocol does not know
        return None

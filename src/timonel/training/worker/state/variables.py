"""Read and assign the variables of a model and its optimizer, on all replicas.

Moving averages, metrics and seeds differ between replicas. Restoring their sum or mean would be
close to the saved state, but not equal.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.errors import TimonelError
from timonel.training.worker.private import hidden_state
from timonel.training.worker.state.checkpoint_format import dtype_named


def check(variables: Sequence[Any], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Check that saved values belong to these variables."""
    here = [(tuple(v.shape), dtype_named(getattr(v.dtype, "name", v.dtype))) for v in variables]
    there = [(array.shape, array.dtype) for array in arrays]
    if here != there:
        raise TimonelError(
            "The model differs from the checkpoint: it has other variables "
            f"({len(here)} instead of {len(there)}, or other shapes)",
            hint="build the same models in the same order each time the script starts",
        )


Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_LARGE = 1 << 20
"""Smaller copies come from the allocator's own memory."""
_UNUSED = 2
"""References to an unused buffer: a local variable, and the argument of `sys.getrefcount`."""


class Buffers:
    """Copies values into buffers that are reused once unreferenced."""

    def __init__(self) -> None:
        self._lent: list[Bytes] = []

    def copies(self, values: list[Any]) -> list[Array]:
        """Return a copy of each eager tensor in host memory.

        Earlier copies stay valid while anything refers to them or to a view of them.
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
    """Return a view of a tensor's memory; None if it is small, or not accessible."""
    if value.shape.num_elements() * value.dtype.size < _LARGE:
        return None
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError):  # dtypes that the buffer protocol does not know
        return None


class StrategyReplicas:
    """Replicas of a strategy on ``workers`` processes, or the only one without it."""

    def __init__(self, strategy: Any, workers: int = 1) -> None:
        self._strategy = strategy
        self._workers = workers
        self._buffers = Buffers()

    @property
    def count(self) -> int:
        """Number of replicas of all processes."""
        return 1 if self._strategy is None else int(self._strategy.num_replicas_in_sync)

    def read_first(self, variables: Sequence[Any]) -> list[Array]:
        """Return the values on this process's first replica, without communication."""
        first = (self._parts(variable)[0] for variable in variables)
        return self._buffers.copies([variable.read_value() for variable in first])

    def read(self, variables: Sequence[Any], otherwise: Sequence[Array] = ()) -> list[Array]:
        """Return each variable's values on all replicas [replicas, ...].

        With several workers this is collective: all must call it in the same order. A variable that
        this process no longer has is None, and ``otherwise`` has its value.
        """
        if not variables:
            return []
        local = [
            np.stack(
                [np.asarray(part.numpy()) for part in self._parts(variable)]
                if variable is not None
                else [otherwise[place]] * (self.count // self._workers)
            )
            for place, variable in enumerate(variables)
        ]
        return local if self._workers == 1 else self._gathered(local)

    def restore(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Check that saved values belong to variables, and assign them on all replicas."""
        check(variables, values)
        for variable, value in zip(variables, values, strict=True):
            self.assign_all(variable, value)

    def assign_all(self, variable: Any, value: Array) -> None:
        """Assign all of this process's replicas the same value."""
        for part in self._parts(variable):
            part.assign(value)

    def assign(self, variables: Sequence[Any], values: Sequence[Array], *, sums: bool) -> None:
        """Assign each replica its values from `read`, in the same order.

        If the number of replicas changed: ``sums`` preserves the sum, as for metrics; else floats
        are averaged, and integers taken from the first replicas.
        """
        for variable, stacked in zip(variables, values, strict=True):
            parts = self._parts(variable)
            total = len(parts) * self._workers
            found = stacked if len(stacked) == total else _spread(stacked, total, sums=sums)
            for part, value in zip(parts, self._mine(found, len(parts)), strict=True):
                part.assign(value)

    def _gather(self, values: Any) -> Any:
        """Return the rows of all replicas; traced once per width."""
        # Calling the concrete function works with ``tf.config.run_functions_eagerly``, too.
        return self._traced.get_concrete_function(values)(values)

    @functools.cached_property
    def _traced(self) -> Any:
        return tf.function(lambda rows: self._strategy.gather(rows, axis=0))

    def _parts(self, variable: Any) -> Sequence[Any]:
        found = hidden_state.tensor_variable(variable)
        if self._strategy is None:
            return (found,)
        return tuple(self._strategy.experimental_local_results(found))

    def _mine(self, stacked: Array, local: int) -> Array:
        if self._workers == 1:
            return stacked if local == len(stacked) else stacked[:local]
        first = self._ids[0]
        return stacked[first : first + local]

    @functools.cached_property
    def _ids(self) -> list[int]:
        """Global numbers of this process's replicas."""
        found: list[int] = []

        def note(context: Any) -> Any:
            found.append(int(context.replica_id_in_sync_group))
            return 0

        self._strategy.experimental_distribute_values_from_function(note)
        return sorted(found)

    def _gathered(self, local: Sequence[Array]) -> list[Array]:
        """Gather values [local replicas, ...] of all workers in a single message."""
        count = len(local[0])
        rows = [_packed([values[place] for values in local]) for place in range(count)]
        first = self._ids[0]

        def message(context: Any) -> Any:
            number = int(context.replica_id_in_sync_group)
            head = np.array([number], np.int32)
            return tf.constant(np.concatenate([head, rows[number - first]])[None, :])

        per_replica = self._strategy.experimental_distribute_values_from_function(message)
        gathered = np.asarray(self._gather(per_replica))
        ordered = gathered[np.argsort(gathered[:, 0])][:, 1:]
        return _unpacked(ordered, local)


def _packed(values: Sequence[Array]) -> np.ndarray[Any, np.dtype[np.int32]]:
    content = b"".join(np.ascontiguousarray(value).tobytes() for value in values)
    return np.frombuffer(content + bytes(-len(content) % 4), np.int32)


def _unpacked(rows: Array, like: Sequence[Array]) -> list[Array]:
    content = np.ascontiguousarray(rows).view(np.uint8)
    found, begin = [], 0
    for values in like:
        size = values.nbytes // len(values)
        part = np.ascontiguousarray(content[:, begin : begin + size])
        found.append(part.reshape(-1).view(values.dtype).reshape(len(rows), *values.shape[1:]))
        begin += size
    return found


def _spread(stacked: Array, replicas: int, *, sums: bool) -> Array:
    if sums:
        # The whole sum goes to one replica: integers cannot be divided.
        result = np.zeros((replicas, *stacked.shape[1:]), stacked.dtype)
        result[0] = stacked.sum(axis=0, dtype=stacked.dtype)
        return result
    if stacked.dtype.kind in "iub":
        return stacked[np.minimum(np.arange(replicas), len(stacked) - 1)]
    mean = stacked.astype(np.float64).mean(axis=0).astype(stacked.dtype)
    return np.broadcast_to(mean, (replicas, *mean.shape)).copy()

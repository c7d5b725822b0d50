"""Read and assign variables that differ between replicas.

Moving averages, metrics and seeds differ between replicas. Restoring their sum or mean would be
close to the saved state, but not equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from timonel.training.worker.private import hidden_state
from timonel.training.worker.state.buffers import Buffers

Array = np.ndarray[Any, Any]


class Replicas:
    """Replicas of a strategy, or the only one without it.

    Args:
        strategy: A ``tf.distribute.Strategy``, or None.
        workers: Number of training processes.
    """

    def __init__(self, strategy: Any, workers: int = 1) -> None:
        self._strategy = strategy
        self._workers = workers
        self._traced: Any = None
        self._buffers = Buffers()

    @property
    def count(self) -> int:
        """Number of replicas of all processes."""
        return 1 if self._strategy is None else int(self._strategy.num_replicas_in_sync)

    def read_first(self, variables: Sequence[Any]) -> list[Array]:
        """Return the values on this process's first replica, without communication."""
        first = (self._parts(variable)[0] for variable in variables)
        return self._buffers.copies([variable.read_value() for variable in first])

    def read(self, variables: Sequence[Any]) -> list[Array]:
        """Return each variable's values on all replicas [replicas, ...].

        With several workers this is collective: all must call it in the same order.
        """
        if not variables:
            return []
        parts = [self._parts(variable) for variable in variables]
        local = [np.stack([np.asarray(part.numpy()) for part in found]) for found in parts]
        return local if self._workers == 1 else self._gathered(local)

    def assign(self, variables: Sequence[Any], values: Sequence[Array], *, sums: bool) -> None:
        """Assign each replica its values.

        Args:
            variables: Variables, in the order in which they were read.
            values: Values from `read`.
            sums: If the number of replicas changed: whether to preserve the sum, as for metrics;
                else floats are averaged, and integers taken from the first replicas.
        """
        for variable, stacked in zip(variables, values, strict=True):
            parts = self._parts(variable)
            total = len(parts) * self._workers
            found = stacked if len(stacked) == total else _spread(stacked, total, sums=sums)
            for part, value in zip(parts, self._mine(found, len(parts)), strict=True):
                part.assign(value)

    def _gather(self, values: Any) -> Any:
        """Return the rows of all replicas; traced once per width."""
        import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

        if self._traced is None:
            self._traced = tf.function(lambda rows: self._strategy.gather(rows, axis=0))
        return self._traced(values)

    def _parts(self, variable: Any) -> Sequence[Any]:
        found = hidden_state.tensor_variable(variable)
        if self._strategy is None:
            return (found,)
        return tuple(self._strategy.experimental_local_results(found))

    def _mine(self, stacked: Array, local: int) -> Array:
        if self._workers == 1:
            return stacked if local == len(stacked) else stacked[:local]
        first = self._ids()[0]
        return stacked[first : first + local]

    def _ids(self) -> list[int]:
        """Return the global numbers of this process's replicas."""
        found: list[int] = []

        def note(context: Any) -> Any:
            found.append(int(context.replica_id_in_sync_group))
            return 0

        self._strategy.experimental_distribute_values_from_function(note)
        return sorted(found)

    def _gathered(self, local: Sequence[Array]) -> list[Array]:
        """Gather values [local replicas, ...] of all workers in a single message."""
        import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

        count = len(local[0])
        rows = [_packed([values[place] for values in local]) for place in range(count)]
        first = self._ids()[0]

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

"""Stage gradients on the parameter servers and apply them.

A worker stages its results under the attempt's number, on the parameter server that stores the
variable, in TensorFlow's staging areas: they hold tensors of any shape until these are taken.
Results count only once the chief takes them out, scales them and passes them to the optimizer, in
one call; so no lock is needed that a lost worker could hold.

The chief makes all updates sequentially, so that it alone tracks them. The gradients themselves
never pass through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from timonel.training.worker.private import ps_variables

Staged = Mapping[str, Sequence["StagedGradient"]]
"""Entries staged under one number, by device."""


@dataclass(frozen=True)
class StagedGradient:
    """The result of a step for one variable."""

    variable: Any  # TensorFlow's own
    place: int | None  # index in the optimizer's list; None for a non-trainable variable
    values: tuple[Any, ...]  # tensors of the traced step: a dense one, or values and indices

    @classmethod
    def of(cls, place: int | None, value: Any, variable: Any) -> StagedGradient:
        """Return the entry of a dense or sparse gradient, or of a change."""
        is_sparse = isinstance(value, tf.IndexedSlices)
        return cls(variable, place, (value.values, value.indices) if is_sparse else (value,))

    @property
    def is_sparse(self) -> bool:
        """Whether it contains only some rows of a gradient."""
        return len(self.values) > 1


def stage(
    entries: Sequence[StagedGradient], attempt: Any, name: str
) -> dict[str, tuple[StagedGradient, ...]]:
    """Stage entries by their variables' device; return them in the order of `take`; when traced."""
    by_device: dict[str, list[StagedGradient]] = {}
    for entry in entries:
        by_device.setdefault(entry.variable.device, []).append(entry)
    for device, found in by_device.items():
        packed = _pack(found)
        with tf.device(device):
            tf.raw_ops.MapStage(
                key=attempt,
                indices=tf.range(len(packed)),
                values=packed,
                dtypes=[value.dtype for value in packed],
                shared_name=name,
            )
    return {device: tuple(found) for device, found in by_device.items()}


def _pack(entries: Sequence[StagedGradient]) -> list[Any]:
    """Join the dense tensors of each type into one vector: one message replaces many."""
    dense: dict[Any, list[Any]] = {}
    sparse: list[Any] = []
    for entry in entries:
        if entry.is_sparse:
            sparse.extend(entry.values)
        else:
            dense.setdefault(entry.values[0].dtype, []).append(entry.values[0])
    vectors = [tf.concat([tf.reshape(part, [-1]) for part in parts], 0) for parts in dense.values()]
    return [*vectors, *sparse]


def take(
    entries: Sequence[StagedGradient], device: str, attempt: Any, name: str
) -> list[tuple[Any, ...]]:
    """Take the tensors of each entry, staged on a device under a number; when traced."""
    dense, dtypes = _dense_dtypes(entries), _dtypes(entries)
    with tf.device(device):
        packed = tf.raw_ops.MapUnstage(
            key=attempt, indices=tf.range(len(dtypes)), dtypes=dtypes, shared_name=name
        )
        parts = {
            dtype: iter(_split(vector, dtype, entries))
            for dtype, vector in zip(dense, packed[: len(dense)], strict=True)
        }
        rest = iter(packed[len(dense) :])
        return [
            _rows(entry, next(rest), next(rest))
            if entry.is_sparse
            else (next(parts[entry.values[0].dtype]),)
            for entry in entries
        ]


def combined(
    entry: StagedGradient, taken: Sequence[tuple[Any, ...]], weights: Any, shares: Any
) -> Any:
    """Combine several attempts' results for one variable into a gradient or change.

    Gradients have weights, and changes the attempts' fractions of all rows, both float32
    [attempts].
    """
    if entry.place is not None and entry.is_sparse:
        values = [part[0] * tf.cast(weights[n], part[0].dtype) for n, part in enumerate(taken)]
        return tf.IndexedSlices(
            tf.concat(values, 0),
            tf.concat([part[1] for part in taken], 0),
            tf.constant(entry.variable.shape.as_list(), tf.int64),
        )
    if entry.place is None and not entry.values[0].dtype.is_floating:
        # A counter: each part of a batch has counted the batch.
        return taken[0][0]
    factors = weights if entry.place is not None else shares
    scaled = [part[0] * tf.cast(factors[n], part[0].dtype) for n, part in enumerate(taken)]
    return tf.add_n(scaled)


def add_change(variable: Any, change: Any) -> None:
    """Add a change to a non-trainable variable; when traced."""
    if variable.dtype == tf.bool:
        value = tf.cast(variable.read_value(), tf.int32) + change
        variable.assign(tf.cast(value, tf.bool))
    else:
        variable.assign_add(tf.cast(change, variable.dtype))


@dataclass(eq=False)
class Applier:
    """Applies staged results. Used only by the chief's thread."""

    strategy: Any
    optimizer: Any
    variables: Sequence[Any]
    staged: Staged
    name: str
    _functions: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._discard = tf.function(self._take, autograph=False)

    def apply(
        self, attempts: Sequence[int], weights: Sequence[float], shares: Sequence[float]
    ) -> None:
        """Make one update from attempts' staged results; shares are their fractions of all rows."""
        count = len(attempts)
        if count not in self._functions:
            update, spec = tf.function(self._update, autograph=False), tf.TensorSpec([count])
            with ps_variables.inside_scope(self.strategy):
                self._functions[count] = update.get_concrete_function(
                    tf.TensorSpec([count], tf.int64), spec, spec
                )
        self._functions[count](
            tf.constant(attempts, tf.int64),
            tf.constant(weights, tf.float32),
            tf.constant(shares, tf.float32),
        )

    def discard(self, attempt: int) -> None:
        """Discard an attempt's staged results."""
        self._discard(tf.constant(attempt, tf.int64))

    def clear(self) -> None:
        """Discard all staged results, such as those of lost workers."""
        for device, entries in self.staged.items():
            packed = _dtypes(entries)
            with tf.device(device):
                tf.raw_ops.MapClear(dtypes=packed, shared_name=self.name)

    def _take(self, attempt: Any) -> None:
        for device, entries in self.staged.items():
            take(entries, device, attempt, self.name)

    def _update(self, attempts: Any, weights: Any, shares: Any) -> None:
        gradients: list[Any] = [None] * len(self.variables)
        for device, entries in self.staged.items():
            taken = [
                take(entries, device, attempts[n], self.name) for n in range(attempts.shape[0])
            ]
            with tf.device(device):
                for number, entry in enumerate(entries):
                    parts = [found[number] for found in taken]
                    value = combined(entry, parts, weights, shares)
                    if entry.place is None:
                        add_change(entry.variable, value)
                    else:
                        gradients[entry.place] = value
        if self.optimizer is not None:
            with ps_variables.as_one_replica(self.strategy):
                self.strategy.run(self._step, args=(gradients,))

    def _step(self, gradients: Sequence[Any]) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))


def _dtypes(entries: Sequence[StagedGradient]) -> list[Any]:
    sparse = [value.dtype for entry in entries if entry.is_sparse for value in entry.values]
    return [*_dense_dtypes(entries), *sparse]


def _dense_dtypes(entries: Sequence[StagedGradient]) -> list[Any]:
    return list(dict.fromkeys(entry.values[0].dtype for entry in entries if not entry.is_sparse))


def _rows(entry: StagedGradient, values: Any, indices: Any) -> tuple[Any, Any]:
    """Restore the static shapes of a sparse gradient, which staging loses."""
    values.set_shape([None, *entry.variable.shape[1:]])
    indices.set_shape([None])
    return values, indices


def _split(vector: Any, dtype: Any, entries: Sequence[StagedGradient]) -> list[Any]:
    dense = (each for each in entries if not each.is_sparse and each.values[0].dtype == dtype)
    shapes = [entry.variable.shape for entry in dense]
    parts = tf.split(vector, [shape.num_elements() for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]

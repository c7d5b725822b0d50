"""Divide batches among replicas.

A dataset of `timonel.data.load` already contains only this worker's rows: its batches are divided
among the local replicas only. For any other dataset, every worker reads all batches and takes its
own rows of each. This replaces TensorFlow's automatic sharding, which shards by files if possible,
unevenly or with an error, and leaves a replica without rows if a batch (such as the last one) has
fewer rows than replicas, which aborts the process in training.

Replica ``i`` of worker ``w`` takes the part ``i * workers + w`` of a batch: the order in which
Keras concatenates predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from timonel.data import load_registry
from timonel.errors import SpecError
from timonel.training.worker.inputs.fit_data import of_each
from timonel.training.worker.private import row_means, tf_data

_UNEQUAL = "the tensors of a batch have different numbers of rows, so replicas cannot divide it"
_CURE = "give all of them the same first axis, or train with one worker and one device"


@dataclass(frozen=True)
class Share:
    """The parts of a batch for one worker's replicas."""

    parts: tuple[int, ...]  # index of each local replica's part
    total: int  # number of parts


def share_of(worker: int, *, workers: int, replicas: int, sharded: bool) -> Share:
    """Return a worker's share of each batch; a sharded dataset has only the worker's own rows."""
    local = replicas // workers
    if sharded:
        return Share(tuple(range(local)), local)
    return Share(tuple(place * workers + worker for place in range(local)), replicas)


def bounds(rows: Any, part: int, total: int) -> tuple[Any, Any]:
    """Return the bounds of a part of ``rows`` rows; sizes of parts differ by at most one."""
    return rows * part // total, rows * (part + 1) // total


_next_is_training_data = False


def expect_training_data() -> None:
    """Mark the next distributed dataset as training data, which ``fit`` distributes first."""
    global _next_is_training_data  # noqa: PLW0603 - a process runs one `fit` at a time
    _next_is_training_data = True


def install(strategy: Any, workers: int) -> None:
    """Divide the datasets that ``strategy`` distributes, for ``fit`` and custom loops."""
    original = strategy.experimental_distribute_dataset

    def distribute_dataset(dataset: Any, options: Any = None) -> Any:
        global _next_is_training_data
        fill, _next_is_training_data = _next_is_training_data, False
        sharded = workers > 1 and load_registry.is_sharded(dataset)
        divided = distribute(strategy, dataset, sharded=sharded, fill=fill)
        return original(dataset, options) if divided is None else divided

    strategy.experimental_distribute_dataset = distribute_dataset


def distribute(strategy: Any, dataset: Any, *, sharded: bool, fill: bool) -> Any:
    """Return ``dataset`` distributed over the replicas; None if it has no rows to divide.

    A ``sharded`` dataset has only this worker's rows. ``fill`` repeats rows of a batch with fewer
    rows than replicas. Without it some replicas get no rows of that batch, which is right when
    predictions are counted.
    """
    if not _has_rows(dataset.element_spec):
        return None

    def local(context: Any) -> Any:
        share = share_of(
            context.input_pipeline_id,
            workers=context.num_input_pipelines,
            replicas=context.num_replicas_in_sync,
            sharded=sharded,
        )
        mine = dataset if share.total == 1 else _split(dataset, share, fill=fill)
        return tf_data.without_tuner(mine)

    return strategy.distribute_datasets_from_function(local)


def require_equal_rows(batch: Any) -> None:
    """Check that the tensors of a batch, or their specs, have as many rows as far as is known."""
    shapes = [getattr(value, "shape", None) for value in tf.nest.flatten(batch)]  # None has none
    known = dict.fromkeys(int(shape[0]) for shape in shapes if shape and shape[0] is not None)
    if len(known) > 1:
        raise SpecError(f"{_UNEQUAL}: {', '.join(map(str, known))}", hint=_CURE)


def _split(dataset: Any, share: Share, *, fill: bool) -> Any:
    require_equal_rows(dataset.element_spec)

    def take(batch: Any, part: int) -> Any:
        rows = _rows(batch)
        begin, end = bounds(rows, part, share.total)
        # Two static rows in each part, as one decides nothing in `row_dependence`, on some workers.
        if not fill or (isinstance(rows, int) and rows >= 2 * share.total):
            return of_each(lambda value: value[begin:end], batch)
        rows = tf.cast(rows, tf.int64)
        repeated = tf.range(rows * row_means.repetitions(part, share.total)) % tf.maximum(rows, 1)
        return tf.cond(
            rows >= share.total,
            lambda: of_each(lambda value: value[begin:end], batch),
            lambda: of_each(lambda value: tf.gather(value, repeated), batch),
        )

    if len(share.parts) == 1:
        pieces = _mapped(dataset.map, lambda batch: take(batch, share.parts[0]))
    else:
        pieces = _mapped(
            dataset.flat_map, lambda batch: _in_order([take(batch, part) for part in share.parts])
        )
    return pieces.prefetch(2 * len(share.parts))


def _mapped(method: Callable[..., Any], function: Callable[[Any], Any]) -> Any:
    """Call ``map`` or ``flat_map`` with a function of the whole element."""
    # They pass an element that is a tuple, also ``(x,)``, as separate arguments.
    if type(method.__self__.element_spec) is tuple:  # type: ignore[attr-defined] # a bound method
        return method(lambda *parts: function(parts))
    return method(function)


def _rows(batch: Any) -> Any:
    first, *others = (value for value in tf.nest.flatten(batch) if value is not None)
    for other in others:
        if first.shape[0] is None or other.shape[0] is None:
            sizes = tf.shape(first)[0], tf.shape(other)[0]
            tf.debugging.assert_equal(*sizes, f"{_UNEQUAL}: {_CURE}")
    known = first.shape[0]
    return int(known) if known is not None else tf.shape(first, out_type=tf.int64)[0]


def _in_order(pieces: Sequence[Any]) -> Any:
    result = tf.data.Dataset.from_tensors(pieces[0])
    for piece in pieces[1:]:
        result = result.concatenate(tf.data.Dataset.from_tensors(piece))
    return result


def _has_rows(spec: Any) -> bool:
    specs = [found for found in tf.nest.flatten(spec) if not isinstance(found, tf.NoneTensorSpec)]
    return bool(specs) and all(
        isinstance(found, tf.TensorSpec) and found.shape.rank != 0 for found in specs
    )

"""What happens to gradients between a model and its optimizer: added up over batches and replicas.

Each update is made of the gradients of one batch, or of several (`Plan.accumulate`), of which only
their sum travels between replicas, in a smaller type where that is wanted (`Plan.compression`).
Both hold for ``fit`` and for loops of one's own: `private.optimizers` calls them from inside the
optimizers of both Kerases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.training.settings import Compression

Gradients = list[Any]
Reduce = Callable[[Gradients], Gradients]

before_reduce: list[Callable[[Gradients], Gradients]] = []
"""Called on each replica, while a step is traced, with the gradients that are about to travel;
each gives them back, with operations of its own in their way."""
after_reduce: list[Callable[[Gradients], Gradients]] = []
"""The same, with the sums that have come."""

_HALF_OF_FLOAT16 = 2.0**15
_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -100.0, 100.0


@dataclass(frozen=True)
class Plan:
    """What is done to gradients.

    Attributes:
        compression: The type in which they travel; None for their own.
        accumulate: Batches whose gradients make up one update.
    """

    compression: Compression | None = None
    accumulate: int = 1


def reduced(gradients: Gradients, compression: Compression | None, reduce: Reduce) -> Gradients:
    """Return the sums of gradients over all replicas.

    Called on each replica. Slices, which are what embeddings have for gradients, travel as they
    are.

    Args:
        gradients: Tensors or ``tf.IndexedSlices``.
        compression: The type in which they travel.
        reduce: Adds a list of tensors up over all replicas.
    """
    for hook in before_reduce:
        gradients = hook(gradients)
    sums = _sums(gradients, compression, reduce)
    for hook in after_reduce:
        sums = hook(sums)
    return sums


def _sums(gradients: Gradients, compression: Compression | None, reduce: Reduce) -> Gradients:
    if compression is None or _replicas() == 1:
        return reduce(gradients)
    if compression == "bfloat16":
        return _restored(gradients, reduce(_cast(gradients, "bfloat16")))
    return _reduced_as_float16(gradients, reduce)


def accumulated(
    sums: Sequence[Any],
    count: Any,
    gradients: Gradients,
    every: int,
    update: Callable[[Gradients], None],
) -> None:
    """Add gradients up, and call ``update`` with the mean of every ``every`` batches.

    Called on each replica.

    Args:
        sums: A variable for each gradient, on each replica its own.
        count: A variable that counts batches, the same on all replicas.
        gradients: Of this batch.
        every: Batches that make up one update.
        update: Is called on each replica.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    for total, gradient in zip(sums, gradients, strict=True):
        total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
    count.assign_add(1)

    def make_update() -> None:
        update([tf.convert_to_tensor(total) / every for total in sums])
        for total in sums:
            total.assign(tf.zeros(total.shape, total.dtype))

    def across_replicas(strategy: Any) -> None:
        # A condition around what talks to other replicas has to stand above all of them.
        tf.cond(
            tf.equal(tf.convert_to_tensor(count) % every, 0),
            lambda: _without_result(strategy.extended.call_for_each_replica(make_update)),
            lambda: _without_result(None),
        )

    tf.distribute.get_replica_context().merge_call(across_replicas)


def _without_result(_: Any) -> Any:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    return tf.constant(0)


def _reduced_as_float16(gradients: Gradients, reduce: Reduce) -> Gradients:
    """Reduce in float16, whose largest number is 65504, without overflow.

    The replicas add up the largest magnitude of each: no sum of gradients is larger. All are
    multiplied by the power of two that brings this bound to half of float16's range, so that as
    little as possible is lost at its lower end either. A gradient that is no finite number stays
    one.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    dense = [gradient for gradient in gradients if _travels_smaller(gradient)]
    if not dense:
        return reduce(gradients)
    largest = tf.reduce_max(tf.stack([tf.reduce_max(tf.abs(found)) for found in dense]))
    (bound,) = reduce([largest])
    exponent = tf.floor(tf.math.log(_HALF_OF_FLOAT16 / bound) / tf.math.log(2.0))
    known = tf.math.is_finite(exponent)
    exponent = tf.clip_by_value(exponent, _SMALLEST_EXPONENT, _LARGEST_EXPONENT)
    scale = tf.where(known, tf.pow(2.0, exponent), 1.0)
    scaled = [found * scale if _travels_smaller(found) else found for found in gradients]
    sums = _restored(gradients, reduce(_cast(scaled, "float16")))
    return [
        total / scale if _travels_smaller(found) else total
        for found, total in zip(gradients, sums, strict=True)
    ]


def _cast(gradients: Gradients, dtype: str) -> Gradients:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    return [tf.cast(found, dtype) if _travels_smaller(found) else found for found in gradients]


def _restored(originals: Gradients, sums: Gradients) -> Gradients:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    return [
        tf.cast(total, original.dtype) if _travels_smaller(original) else total
        for original, total in zip(originals, sums, strict=True)
    ]


def _travels_smaller(gradient: Any) -> bool:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    return not isinstance(gradient, tf.IndexedSlices) and gradient.dtype == tf.float32


def _replicas() -> int:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    return int(tf.distribute.get_strategy().num_replicas_in_sync)

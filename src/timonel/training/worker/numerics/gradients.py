"""Sum gradients over batches and replicas, between model and optimizer.

Each update uses the gradients of one batch or of several (`Plan.accumulate`), of which only the sum
is sent between replicas, optionally in a smaller type (`Plan.compression`). Both apply to ``fit``
and to custom loops: `private.optimizers` calls them from inside both Kerases' optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.training.options import Compression
from timonel.training.worker.numerics import exchange
from timonel.training.worker.numerics.exchange import Gradients, Reduce

before_reduce: list[Callable[[Gradients], Gradients]] = []
"""Hooks for gradients before they are sent.

Called on each replica while a step is traced.

Each returns them, possibly with operations added.
"""
after_reduce: list[Callable[[Gradients], Gradients]] = []
"""Hooks called likewise with the received sums."""


@dataclass(frozen=True)
class Plan:
    """Processing of gradients.

    Attributes:
        compression: Type in which they are sent; None: their own.
        accumulate: Number of batches per update.
    """

    compression: Compression | None = None
    accumulate: int = 1


def reduced(gradients: Gradients, compression: Compression | None, reduce: Reduce) -> Gradients:
    """Return the sums of gradients over all replicas.

    Called on each replica. Slices, the gradients of embeddings, are sent unchanged.

    Args:
        gradients: Tensors or ``tf.IndexedSlices``.
        compression: Type to send.
        reduce: Sums a list of tensors over all replicas.
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
    return exchange.compressed(gradients, compression, reduce)


def accumulated(
    sums: Sequence[Any],
    count: Any,
    gradients: Gradients,
    every: int,
    update: Callable[[Gradients], None],
) -> None:
    """Sum gradients, and call ``update`` with the mean of every ``every`` batches.

    Called on each replica.

    Args:
        sums: A variable for each gradient, with a value per replica.
        count: Variable that counts batches, equal on all replicas.
        gradients: Gradients of this batch.
        every: Batches per update.
        update: Called on each replica.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

    for total, gradient in zip(sums, gradients, strict=True):
        total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
    count.assign_add(1)

    def make_update() -> None:
        update([tf.convert_to_tensor(total) / every for total in sums])
        for total in sums:
            total.assign(tf.zeros(total.shape, total.dtype))

    def across_replicas(strategy: Any) -> None:
        # A condition around communication between replicas must enclose all of them.
        tf.cond(
            tf.equal(tf.convert_to_tensor(count) % every, 0),
            lambda: _without_result(strategy.extended.call_for_each_replica(make_update)),
            lambda: _without_result(None),
        )

    tf.distribute.get_replica_context().merge_call(across_replicas)


def _without_result(_: Any) -> Any:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

    return tf.constant(0)


def _replicas() -> int:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

    return int(tf.distribute.get_strategy().num_replicas_in_sync)

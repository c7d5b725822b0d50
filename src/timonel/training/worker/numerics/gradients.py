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
from timonel.training.worker.numerics import exchange
from timonel.training.worker.numerics.exchange import Gradients, Reduce

before_reduce: list[Callable[[Gradients], Gradients]] = []
"""Called on each replica, while a step is traced, with the gradients that are about to travel;
each gives them back, with operations of its own in their way."""
after_reduce: list[Callable[[Gradients], Gradients]] = []
"""The same, with the sums that have come."""


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
    return exchange.compressed(gradients, compression, reduce)


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


def _replicas() -> int:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    return int(tf.distribute.get_strategy().num_replicas_in_sync)

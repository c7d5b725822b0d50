"""Sum gradients over replicas: hooks, message sizes, and data type.

Each update uses the gradients of one batch or of several (`GradientPlan.accumulate`), of which only
the sum is sent between replicas, optionally in a smaller type (`GradientPlan.compression`). Both
apply to ``fit`` and to custom loops: `private.optimizers` calls them from inside both Kerases'
optimizers.

A message is a collective operation. Between workers, each large gradient has its own message, which
leaves while others are still being computed and needs no copy; small ones share messages.
TensorFlow by default copies all into one: for 25 million parameters and two workers on one machine,
a step then took twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from timonel.training.train_options import Compression

Gradients = list[Any]
Reduce = Callable[[Gradients], Gradients]

_ALONE = 2**20
"""Size in bytes from which a gradient gets its own message."""
_TOGETHER = 2**22
"""Size in bytes of a full message of small gradients."""
_HALF_OF_FLOAT16 = 2.0**15
_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -100.0, 100.0

before_reduce: list[Callable[[Gradients], Gradients]] = []
"""Hooks for gradients before they are sent, on each replica of a traced step; return them."""
after_reduce: list[Callable[[Gradients], Gradients]] = []
"""Hooks called likewise with the received sums."""


@dataclass(frozen=True)
class GradientPlan:
    """Processing of gradients."""

    compression: Compression | None = None  # type in which they are sent; None: their own
    accumulate: int = 1  # number of batches per update


def reduced(gradients: Gradients, compression: Compression | None, reduce: Reduce) -> Gradients:
    """Return the sums of gradients over all replicas; called on each replica.

    Slices, the gradients of embeddings, are sent unchanged. ``reduce`` sums a list of tensors.
    """
    for hook in before_reduce:
        gradients = hook(gradients)
    if compression is None or tf.distribute.get_strategy().num_replicas_in_sync == 1:
        sums = reduce(gradients)
    else:
        sums = _compressed(gradients, compression, reduce)
    for hook in after_reduce:
        sums = hook(sums)
    return sums


def is_between_workers() -> bool:
    """Whether the replicas of the current strategy are in several processes."""
    return isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy)


def sum_between_workers(values: Gradients) -> Gradients:
    """Return the sums of tensors or ``tf.IndexedSlices`` over all workers. Collective."""
    if not values:
        return []
    context, sums = tf.distribute.get_replica_context(), list(values)
    large = [place for place, value in enumerate(values) if _is_large(value)]
    small = [place for place in range(len(values)) if place not in set(large)]
    for places, size in ((large, 1), (small, _TOGETHER)):
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=size)
        if places:
            mine = [values[place] for place in places]
            found = context.all_reduce(tf.distribute.ReduceOp.SUM, mine, options=options)
            for place, total in zip(places, found, strict=True):
                sums[place] = total
    return sums


def _compressed(gradients: Gradients, compression: Compression, reduce: Reduce) -> Gradients:
    """Return the sums of gradients; only float32 tensors are sent in a smaller type."""
    compressible = [place for place, found in enumerate(gradients) if _can_compress(found)]
    if not compressible:
        return reduce(gradients)
    scales = None
    if compression == "float16":
        scales = _scales([gradients[place] for place in compressible], reduce)
    sent = list(gradients)
    for number, place in enumerate(compressible):
        found = gradients[place] if scales is None else gradients[place] * scales[number]
        sent[place] = tf.cast(found, compression)
    sums = reduce(sent)
    for number, place in enumerate(compressible):
        total = tf.cast(sums[place], gradients[place].dtype)
        # A power of two: the division is exact.
        sums[place] = total if scales is None else total / scales[number]
    return sums


def _scales(gradients: Gradients, reduce: Reduce) -> Gradients:
    """Return the scales of gradients for float16, whose largest number is 65504."""
    # The replicas sum the largest magnitude of each tensor, which bounds every sum in it. The scale
    # is the power of two that brings this bound to half of float16's range, which also loses as
    # little as possible at the lower end. A non-finite gradient stays non-finite.
    # Unlike the magnitudes, neither of these creates a tensor of that size.
    largest = [tf.maximum(tf.reduce_max(found), -tf.reduce_min(found)) for found in gradients]
    (bounds,) = reduce([tf.stack(largest)])
    exponents = tf.floor(tf.math.log(_HALF_OF_FLOAT16 / bounds) / tf.math.log(2.0))
    known = tf.math.is_finite(exponents)
    exponents = tf.clip_by_value(exponents, _SMALLEST_EXPONENT, _LARGEST_EXPONENT)
    scales = tf.where(known, tf.pow(2.0, exponents), 1.0)
    return list(tf.unstack(scales, num=len(gradients)))


def _can_compress(gradient: Any) -> bool:
    return not isinstance(gradient, tf.IndexedSlices) and gradient.dtype == tf.float32


def _is_large(value: Any) -> bool:
    count = None if isinstance(value, tf.IndexedSlices) else value.shape.num_elements()
    return count is not None and count * value.dtype.size >= _ALONE

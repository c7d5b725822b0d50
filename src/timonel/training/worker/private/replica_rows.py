"""The rows of a batch on each replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf


def repetitions(part: int, total: int) -> int:
    """Return how often a part repeats the rows of a batch with fewer rows than parts.

    Each part then has the whole batch, of which only that of the first part counts. Parts differ
    by more rows than those of any other batch, which tells `layout_of` that they repeat.
    """
    return 1 if part == 0 else total + 1


@dataclass(frozen=True)
class Layout:
    """The rows of a replica among those of all."""

    given: Any  # its rows, static if known
    rows: Any  # its rows that count; another replica may count the others
    counts: Any  # the rows of each replica that count; None if a worker knows only its own
    position: int  # among the replicas
    weight: Any  # its share of all rows, times the number of replicas
    ratio: Any  # factor by which a sum over its rows counts more than their mean

    def gathered(self, value: Any) -> Any:
        """Return the rows of all replicas; gradients reach those of this one."""
        context = tf.distribute.get_replica_context()
        kind = tf.int32 if value.dtype == tf.bool else value.dtype
        # A row of the batch may have become several.
        counts = self.counts * (tf.shape(value)[0] // tf.maximum(self.given, 1))
        rows, total = counts[self.position], tf.reduce_sum(counts)
        begin = tf.reduce_sum(counts[: self.position])
        padding = [[begin, total - begin - rows], *([0, 0] for _ in value.shape[1:])]
        mine = tf.pad(tf.cast(value, kind)[:rows], padding)
        found = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(mine))
        places = tf.reshape(tf.range(total), [-1, *(1 for _ in value.shape[1:])])
        whole = tf.where((places >= begin) & (places < begin + rows), mine, found)
        whole.set_shape([None, *value.shape[1:]])
        return tf.cast(whole, value.dtype)


def layout_of(rows: Any, *, repeats: bool) -> Layout:
    """Return the layout of the replica that is traced; its rows may repeat, see `repetitions`."""
    context = tf.distribute.get_replica_context()
    replicas, position = context.num_replicas_in_sync, context.replica_id_in_sync_group
    mine = tf.one_hot(position, replicas, dtype=tf.int32) * tf.cast(rows, tf.int32)
    counts = context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
    counted = rows
    # Parts of a repeated batch have fewer rows than the square.
    if repeats and not (isinstance(rows, int) and rows >= replicas * replicas):
        pattern = [repetitions(part, replicas) for part in range(replicas)]
        is_repeated = (counts[0] < replicas) & tf.reduce_all(counts == counts[0] * pattern)
        counts = tf.where(is_repeated, counts * tf.one_hot(0, replicas, dtype=tf.int32), counts)
        counted = counts[position]
    own, total = tf.cast(counts[position], tf.float32), tf.cast(tf.reduce_sum(counts), tf.float32)
    weight = tf.math.divide_no_nan(own * replicas, total)
    ratio = tf.math.divide_no_nan(total, own)
    return Layout(rows, counted, counts, position, weight, ratio)

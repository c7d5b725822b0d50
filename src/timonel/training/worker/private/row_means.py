"""Scale the losses of replicas so that all rows count equally.

Replicas may have different numbers of rows, or none. Both Kerases average the losses of replicas as
if all had the same number, and a step sees its part of that average: a script's ``train_step`` that
tracks ``loss`` reports half of it with two replicas. Within `weighted`, a number of a replica is
one of two:

- a *mean over its rows*. Weighed by the replicas' shares of the rows, these give the value of the
  whole batch. `row_mean` makes one from a mean or a sum; a loss or metric function of another kind
  is computed from the rows of all replicas, and other terms are rejected.
- *scaled*: such a mean times the share, with a gradient divided by the number of replicas, as
  replicas' gradients are added. Losses that a step sees are scaled.

The share is that of a mean's divisor: the rows, the entries that a mask leaves, or the weights
(``mean_with_sample_weight``).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.private import loss_terms
from timonel.training.worker.private.attributes import replaced
from timonel.training.worker.private.loss_terms import BatchRows, TermKind, present

Warn = Callable[[str], object]


def repetitions(part: int, total: int) -> int:
    """Return how often a part repeats the rows of a batch with fewer rows than parts."""
    # Each part then has the whole batch, of which only that of the first part counts. Parts differ
    # by more rows than those of any other batch, which tells `_layout_of` that they repeat.
    return 1 if part == 0 else total + 1


@dataclass(frozen=True)
class ReplicaRows:
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


def _layout_of(rows: Any, *, repeats: bool) -> ReplicaRows:
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
    return ReplicaRows(rows, counted, counts, position, weight, ratio)


_warn: Warn = logging.getLogger(__name__).warning


def show_with(show: Warn) -> None:
    """Show lines to the user this way: each once, as every replica is traced several times."""
    global _warn  # noqa: PLW0603 - a process has one user
    _warn = functools.cache(show)


def warn(line: str) -> None:
    """Show the user a line, once."""
    _warn(line)


@contextlib.contextmanager
def weighted(rows: Any, *, repeats: bool = False) -> Iterator[Any]:
    """Weigh losses by the replica's share of rows, unless None; yield the rows that count."""
    layout = None if rows is None else _layout_of(rows, repeats=repeats)
    with replaced(present, layout=layout, outputs=[], computed=[], terms={}):
        yield layout and layout.rows


def part_of(share: Any, rows: Any) -> contextlib.AbstractContextManager[None]:
    """Count values of a part of a batch by its share of the rows; gradients are averaged so."""
    layout = ReplicaRows(rows, rows, None, 0, share, tf.math.reciprocal_no_nan(share))
    return replaced(present, layout=layout, outputs=[], computed=[], terms={})


def replica() -> ReplicaRows | None:
    """Return the layout if this thread traces a replica within `weighted`."""
    layout = present.layout
    return None if layout is None or layout.counts is None else layout


def row_mean(value: Any, otherwise: Callable[[], Any], batch: BatchRows) -> Any:
    """Return a number as a mean over the replica's rows; ``otherwise()`` if its kind is OTHER."""
    kind = loss_terms.kind_of(value, batch)
    if kind is TermKind.SCALED:
        return unscaled(value)
    if kind is TermKind.SUM:
        value = times(value, present.layout.ratio)
    elif kind is TermKind.OTHER:
        value = otherwise()
    return loss_terms.noted(value, TermKind.MEAN)


def scaled(value: Any) -> Any:
    """Scale a mean over the replica's rows."""
    found = times(tf.convert_to_tensor(value), present.layout.weight)
    return loss_terms.noted(with_gradient(found, 1 / _replicas()), TermKind.SCALED)


def unscaled(value: Any) -> Any:
    """Return a scaled loss as the mean over the replica's rows."""
    mean = tf.math.divide_no_nan(value, tf.cast(present.layout.weight, value.dtype))
    return loss_terms.noted(with_gradient(mean, _replicas()), TermKind.MEAN)


def batch_of(what: str, given: Any, *, is_independent: bool = False) -> BatchRows:
    """Return the rows of this replica from which a function or a term is computed."""

    def unclear() -> None:
        warn(
            f"{what}: values of rows may depend on other rows, which cannot be found out. Each "
            "replica computes them from its own rows: if they do, train with one worker and one "
            "device."
        )

    tensors = [each for each in tf.nest.flatten(given) if hasattr(each, "graph")]
    return BatchRows(present.layout.given, tensors, unclear, is_independent)


def warn_of_part(name: str) -> None:
    """Tell what averages over a part of a batch, of which `part_of` knows only the rows."""
    warn(
        f"{name}: averages over the part of a batch that a worker has, as always when batches are "
        "divided"
    )


def cannot_divide(what: str, cure: str) -> SpecError:
    """Return the error for a value that parts of a batch do not give."""
    return SpecError(
        f"{what} is neither a mean nor a sum over the rows of a batch, so that parts of a batch on "
        "several replicas cannot give its value",
        hint=f"{cure}, or train with one worker and one device",
    )


def _replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def times(value: Any, factor: Any) -> Any:
    """Return a product in the type of the value."""
    return value * tf.cast(factor, value.dtype)


def with_gradient(value: Any, factor: Any) -> Any:
    """Return a value whose gradient is multiplied."""

    @tf.custom_gradient  # type: ignore[untyped-decorator] # TensorFlow has no types
    def same(given: Any) -> Any:
        return tf.identity(given), lambda upstream: times(upstream, factor)

    return same(value)

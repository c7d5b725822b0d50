from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.private import loss_terms, losses
from timonel.training.worker.private.loss_terms import Kind

WEIGHTS = tf.Variable(tf.ones([3, 2]))


def traced(function: Callable[[Any], Any], rows: int | None = None) -> Any:
    """Return what a function of a batch returns while it is traced."""
    found = []

    def step(batch: Any) -> Any:
        found.append(function(batch))
        return batch

    tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([rows, 3], tf.float32))
    return found[0]


def mean(x: Any) -> Any:
    return tf.reduce_mean(x @ WEIGHTS)


def total(x: Any) -> Any:
    return tf.reduce_sum(x @ WEIGHTS)


def weights(_: Any) -> Any:
    return 0.1 * tf.reduce_sum(tf.square(WEIGHTS))


@pytest.mark.parametrize("rows", [None, 3, 4])
@pytest.mark.parametrize(
    ("term", "kind"),
    [
        (mean, Kind.MEAN),
        (lambda x: 0.5 * mean(x) - 2 * mean(x) + 1, Kind.MEAN),
        (lambda x: mean(x) + weights(x), Kind.MEAN),
        (lambda x: tf.reduce_mean(tf.reduce_sum(x @ WEIGHTS, axis=1)), Kind.MEAN),
        (lambda x: tf.reduce_sum(tf.reduce_mean(x, axis=0)), Kind.MEAN),
        (lambda x: total(x) / tf.cast(tf.shape(x)[0], tf.float32), Kind.MEAN),
        (
            lambda x: tf.math.divide_no_nan(tf.reduce_sum(x), tf.cast(tf.size(x), tf.float32)),
            Kind.MEAN,
        ),
        (total, Kind.SUM),
        (lambda x: total(x) * 2 / 7, Kind.SUM),
        (lambda x: tf.reduce_sum(tf.reduce_mean(x, axis=1)), Kind.SUM),
        (lambda x: tf.add_n([total(x), total(x)]), Kind.SUM),
        (lambda x: tf.nn.l2_loss(x @ WEIGHTS), Kind.SUM),
        (lambda x: tf.nn.l2_loss(tf.reduce_mean(x, axis=0)), Kind.OTHER),
        (weights, Kind.CONSTANT),
        (lambda _: tf.constant(2.0), Kind.CONSTANT),
        (lambda x: total(x) + weights(x), Kind.OTHER),
        (lambda x: total(x) + mean(x), Kind.OTHER),
        (lambda x: mean(x) * mean(x), Kind.OTHER),
        (lambda x: tf.sqrt(mean(x)), Kind.OTHER),
        (lambda x: total(x) / total(x), Kind.OTHER),
        (lambda x: tf.reduce_mean(x[x > 0]), Kind.OTHER),
        (tf.reduce_max, Kind.OTHER),
        (lambda x: tf.reduce_sum(tf.square(tf.reduce_mean(x, axis=0))), Kind.OTHER),
    ],
)
def test_kinds_of_terms(term: Callable[[Any], Any], kind: Kind, rows: int | None) -> None:
    found = traced(lambda x: loss_terms.kind_of(term(x), rows or tf.shape(x)[0]), rows)
    assert found is kind


@pytest.mark.parametrize(
    ("term", "kind"),
    [
        (lambda loss, _: loss / 2, Kind.SCALED),
        (lambda loss, _: loss + loss, Kind.SCALED),
        (lambda loss, x: loss + mean(x), Kind.OTHER),
        (lambda loss, x: loss + weights(x), Kind.OTHER),
        (lambda loss, _: tf.sqrt(loss), Kind.OTHER),
    ],
)
def test_terms_of_scaled_losses(term: Callable[[Any, Any], Any], kind: Kind) -> None:
    def found(x: Any) -> Kind:
        scaled = loss_terms.noted(mean(x), Kind.SCALED)
        return loss_terms.kind_of(term(scaled, x), tf.shape(x)[0])

    assert traced(found) is kind


def of_pairs(x: Any) -> Any:
    return tf.reduce_sum(tf.nn.log_softmax(tf.matmul(x, x, transpose_b=True)), 1)


def loop(x: Any) -> Any:
    return tf.map_fn(lambda row: tf.reduce_sum(row * row[0]), x)


CONSTANT = tf.random.uniform([3, 300])


@pytest.mark.parametrize("rows", [None, 4])
@pytest.mark.parametrize(
    ("function", "mixes"),
    [
        (of_pairs, True),
        (lambda x: tf.reduce_mean(of_pairs(x)), True),
        (lambda x: tf.reduce_sum(tf.abs(x[:, None] - x[None]), [1, 2]), True),
        (lambda x: x / tf.reduce_max(x), True),
        (lambda x: tf.reduce_mean(x - tf.reduce_mean(x, axis=0)), True),
        (lambda x: x @ tf.matmul(x, x, transpose_a=True), True),
        (lambda x: tf.nn.softmax(x, axis=0), True),
        (lambda x: tf.reduce_sum(x[0::2] - x[1::2], 1) if x.shape[0] == 4 else x[0] * x, True),
        (lambda x: tf.sort(tf.reduce_sum(x, 1))[-2:], True),
        (lambda x: tf.reduce_mean(tf.square(x), 1), False),
        (lambda x: tf.reduce_mean(tf.square(x), 0), False),
        (lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32), False),
        (lambda x: tf.nn.log_softmax(x @ WEIGHTS @ tf.transpose(WEIGHTS)), False),
        (lambda x: tf.reduce_logsumexp(x @ CONSTANT, 1), False),
        (lambda x: tf.reduce_sum(tf.transpose(x), 0), False),
        (lambda x: tf.matmul(x[:, None], x[:, :, None]), False),
        (lambda x: tf.gather(x, tf.cast(x[:, 0] > 0, tf.int32), axis=1, batch_dims=1), False),
        (lambda x: tf.reshape(tf.nn.softmax(tf.reshape(x, [-1, 1])), tf.shape(x)), False),
        (lambda x: tf.reduce_sum(tf.eye(tf.shape(x)[0]), 1) + x[:, 0], False),
        (loop, False),
    ],
)
def test_functions_that_mix_rows(
    function: Callable[[Any], Any], mixes: bool, rows: int | None
) -> None:
    assert traced(lambda x: loss_terms.mixes_rows(function, (x,)), rows) is mixes


def test_a_part_of_a_batch_counts_by_its_share() -> None:
    counted: list[Any] = []
    update = losses._counting(lambda _, values, weight: counted.append((values, weight)))

    def step(x: Any) -> None:
        with losses.part_of(tf.constant(0.25), tf.shape(x)[0]):
            update(None, mean(x))
            update(None, x)
            assert losses._term(mean(x)).op.type == "Mean"
            with pytest.raises(SpecError, match="a term of add_loss"):
                losses._term(tf.sqrt(mean(x)))

    traced(step)
    (value, share), (rows, nothing) = counted
    assert (value.shape.rank, share.shape.rank) == (0, 0)
    assert (rows.shape.rank, nothing) == (2, None)


def test_functions_of_a_part_of_a_batch() -> None:
    def found(x: Any, function: Callable[[Any], Any]) -> Any:
        with (
            losses.part_of(tf.constant(0.25), tf.shape(x)[0]),
            losses._calling("root", function, x),
        ):
            return losses._value_of_function(function(x), None)

    assert traced(lambda x: found(x, mean)).op.type == "Mean"
    assert traced(lambda x: found(x, total)).op.type == "Mul"
    with pytest.raises(SpecError, match=r"root is neither .*return a value per row"):
        traced(lambda x: found(x, lambda x: tf.sqrt(mean(x))))

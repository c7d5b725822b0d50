from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.private import layer_losses, loss_terms, losses, row_means
from timonel.training.worker.private.loss_terms import BatchRows, TermKind

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
        (mean, TermKind.MEAN),
        (lambda x: 0.5 * mean(x) - 2 * mean(x) + 1, TermKind.MEAN),
        (lambda x: mean(x) + weights(x), TermKind.MEAN),
        (lambda x: tf.reduce_mean(tf.reduce_sum(x @ WEIGHTS, axis=1)), TermKind.MEAN),
        (lambda x: tf.reduce_sum(tf.reduce_mean(x, axis=0)), TermKind.MEAN),
        (lambda x: total(x) / tf.cast(tf.shape(x)[0], tf.float32), TermKind.MEAN),
        (
            lambda x: tf.math.divide_no_nan(tf.reduce_sum(x), tf.cast(tf.size(x), tf.float32)),
            TermKind.MEAN,
        ),
        (total, TermKind.SUM),
        (lambda x: total(x) * 2 / 7, TermKind.SUM),
        (lambda x: tf.reduce_sum(tf.reduce_mean(x, axis=1)), TermKind.SUM),
        (lambda x: tf.add_n([total(x), total(x)]), TermKind.SUM),
        (lambda x: tf.nn.l2_loss(x @ WEIGHTS), TermKind.SUM),
        (lambda x: tf.nn.l2_loss(tf.reduce_mean(x, axis=0)), TermKind.OTHER),
        (weights, TermKind.CONSTANT),
        (lambda _: tf.constant(2.0), TermKind.CONSTANT),
        (lambda x: total(x) + weights(x), TermKind.OTHER),
        (lambda x: total(x) + mean(x), TermKind.OTHER),
        (lambda x: mean(x) * mean(x), TermKind.OTHER),
        (lambda x: tf.sqrt(mean(x)), TermKind.OTHER),
        (lambda x: total(x) / total(x), TermKind.OTHER),
        (lambda x: tf.reduce_mean(x[x > 0]), TermKind.OTHER),
        (tf.reduce_max, TermKind.OTHER),
        (lambda x: tf.reduce_sum(tf.square(tf.reduce_mean(x, axis=0))), TermKind.OTHER),
        (lambda x: tf.reduce_mean(x - tf.roll(x, 1, 0)), TermKind.OTHER),
        (lambda x: tf.reduce_sum(tf.reshape(tf.reduce_mean(x, axis=1), [1, -1])), TermKind.OTHER),
    ],
)
def test_kinds_of_terms(term: Callable[[Any], Any], kind: TermKind, rows: int | None) -> None:
    found = traced(lambda x: loss_terms.kind_of(term(x), BatchRows(rows or tf.shape(x)[0])), rows)
    assert found is kind


@pytest.mark.parametrize(
    ("term", "kind"),
    [
        (lambda loss, _: loss / 2, TermKind.SCALED),
        (lambda loss, _: loss + loss, TermKind.SCALED),
        (lambda loss, x: loss + mean(x), TermKind.OTHER),
        (lambda loss, x: loss + weights(x), TermKind.OTHER),
        (lambda loss, _: tf.sqrt(loss), TermKind.OTHER),
    ],
)
def test_terms_of_scaled_losses(term: Callable[[Any, Any], Any], kind: TermKind) -> None:
    def found(x: Any) -> TermKind:
        scaled = loss_terms.noted(mean(x), TermKind.SCALED)
        return loss_terms.kind_of(term(scaled, x), BatchRows(tf.shape(x)[0]))

    assert traced(found) is kind


def test_a_part_of_a_batch_counts_by_its_share() -> None:
    counted: list[Any] = []
    update = functools.partial(
        losses._counting, lambda _, values, weight: counted.append((values, weight))
    )

    def step(x: Any) -> None:
        with row_means.part_of(tf.constant(0.25), tf.shape(x)[0]):
            update(SimpleNamespace(name="seen"), mean(x))
            update(None, x)
            assert layer_losses._term(mean(x)).op.type == "Mean"
            with pytest.raises(SpecError, match="a term of add_loss"):
                layer_losses._term(tf.sqrt(mean(x)))

    traced(step)
    (value, share), (rows, nothing) = counted
    assert (value.shape.rank, share.shape.rank) == (0, 0)
    assert (rows.shape.rank, nothing) == (2, None)


def test_functions_of_a_part_of_a_batch() -> None:
    def found(x: Any, function: Callable[[Any], Any]) -> Any:
        with (
            row_means.part_of(tf.constant(0.25), tf.shape(x)[0]),
            losses._calling("root", function, x),
        ):
            return losses._value_of_function(function(x), None)

    assert traced(lambda x: found(x, mean)).op.type == "Mean"
    assert traced(lambda x: found(x, total)).op.type == "Mul"
    with pytest.raises(SpecError, match=r"root is neither .*return a value per row"):
        traced(lambda x: found(x, lambda x: tf.sqrt(mean(x))))


@pytest.mark.parametrize(("is_mean", "counts_often"), [(True, True), (False, False)])
def test_a_tape_adds_up_values_of_rows(is_mean: bool, counts_often: bool) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    seen = loss_terms.Step(model)

    @tf.function
    def step(x: tf.Tensor) -> None:
        rows = tf.square(model(x)[:, 0])
        seen.look(tf.reduce_mean(rows) if is_mean else rows)

    step.get_concrete_function(tf.TensorSpec((None, 3)))
    assert seen.has_own_terms == counts_often

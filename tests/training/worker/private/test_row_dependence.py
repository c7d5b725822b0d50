from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from timonel.training.worker.private import losses, row_dependence

WEIGHTS = tf.Variable(tf.ones([3, 2]))
CONSTANT = tf.random.uniform([3, 300])
COUNT = tf.Variable(0.0)


def decided(function: Callable[..., Any], rows: int | None = None, *, is_given: bool = True) -> Any:
    """Return what is found out about a function of rows while it is traced."""
    found = []

    def step(x: Any) -> Any:
        batch = 2 * x
        given = [batch] if is_given else []
        found.append(row_dependence.mixes_rows(function(batch), given, rows or tf.shape(x)[0]))
        return x

    tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([rows, 3], tf.float32))
    return found[0]


def of_pairs(x: Any) -> Any:
    return tf.reduce_sum(tf.nn.log_softmax(tf.matmul(x, x, transpose_b=True)), 1)


def loop(x: Any) -> Any:
    return tf.map_fn(lambda row: tf.reduce_sum(row * row[0]), x)


def hardest(x: Any) -> Any:
    distances = tf.abs(x[:, :1] - tf.transpose(x[:, :1]))
    return tf.maximum(tf.reduce_max(distances, 1) - 10, 0)


@pytest.mark.parametrize("rows", [None, 6])
@pytest.mark.parametrize(
    ("function", "mixes"),
    [
        (of_pairs, True),
        (lambda x: tf.abs(x[:, None] - x[None]), True),
        (lambda x: x / tf.reduce_max(x), True),
        (lambda x: x - tf.reduce_mean(x, axis=0), True),
        (lambda x: x @ tf.matmul(x, x, transpose_a=True), True),
        (lambda x: tf.nn.softmax(x, axis=0), True),
        (lambda x: x[0::2] - x[1::2], True),
        (lambda x: tf.sort(tf.reduce_sum(x, 1))[-2:], True),
        (lambda x: tf.roll(x, 1, 0), True),
        (lambda x: x[::-1], True),
        (tf.cumsum, True),
        (lambda x: tf.sort(x, axis=0), True),
        (lambda x: tf.gather(x, tf.argsort(x[:, 0])), True),
        (lambda x: tf.scan(lambda a, b: a + b, x), True),
        (lambda x: tf.nn.conv1d(x[None], tf.ones([3, 3, 1]), 1, "SAME")[0], True),
        (lambda x: x[x[:, 0] > 0.5], True),
        (lambda x: tf.transpose(x) @ x, True),
        (lambda x: x[:, 0] * tf.cast(tf.range(tf.shape(x)[0]), tf.float32), True),
        (hardest, True),
        (tf.square, False),
        (lambda x: tf.nn.log_softmax(x @ WEIGHTS @ tf.transpose(WEIGHTS)), False),
        (lambda x: tf.reduce_logsumexp(x @ CONSTANT, 1), False),
        (lambda x: tf.reduce_sum(tf.transpose(x), 0), False),
        (lambda x: tf.matmul(x[:, None], x[:, :, None]), False),
        (lambda x: tf.gather(x, tf.cast(x[:, 0] > 0, tf.int32), axis=1, batch_dims=1), False),
        (lambda x: tf.reshape(tf.nn.softmax(tf.reshape(x, [-1, 1])), tf.shape(x)), False),
        (lambda x: tf.reshape(x, [-1, 1]), False),
        (lambda x: tf.reduce_sum(tf.eye(tf.shape(x)[0]), 1) + x[:, 0], False),
        (lambda x: x + tf.random.normal(tf.shape(x)), False),
        (lambda x: x + tf.random.stateless_uniform(tf.shape(x), [1, 2]), False),
        (lambda x: x, False),
        (loop, False),
        (tf.function(tf.sqrt), False),
        (tf.function(lambda x: tf.roll(x, 1, 0)), True),
    ],
)
@pytest.mark.slow
def test_functions_that_mix_rows(
    function: Callable[[Any], Any], mixes: bool, rows: int | None
) -> None:
    assert decided(function, rows) is mixes
    assert decided(function, rows, is_given=False) is mixes


@pytest.mark.parametrize(
    "function",
    [
        tf.random.shuffle,
        lambda x: tf.numpy_function(np.sqrt, [x], tf.float32),
        lambda x: tf.ensure_shape(x, [7, 3]),
        lambda x: tf.math.log(x - 100),
        tf.function(lambda x: COUNT.assign_add(1.0) * x),
    ],
)
def test_what_cannot_be_found_out_is_unknown_and_has_no_effect(function: Any) -> None:
    assert decided(function) is None
    assert float(COUNT) == 0


def test_a_single_row_decides_nothing() -> None:
    assert decided(tf.square, 1) is None


@pytest.mark.slow
def test_losses_of_keras_that_mix_rows_are_known() -> None:
    def mixes(loss: Any) -> bool:
        found = []

        def step(true: Any, predicted: Any) -> None:
            values = tf.convert_to_tensor(loss.call(true, predicted))
            if values.shape.rank:
                found.append(row_dependence.mixes_rows(values, [true, predicted], None))

        is_sparse = "sparse" in loss.name or loss.name == "circle"
        labels = tf.TensorSpec([None] if is_sparse else [None, 3], tf.float32)
        predictions = tf.TensorSpec([None, 3], tf.float32)
        tf.function(step, autograph=False).get_concrete_function(labels, predictions)
        return True in found

    kinds = [kind for _, kind in inspect.getmembers(keras.losses, inspect.isclass)]
    found = [kind() for kind in kinds if kind not in {keras.losses.Loss, keras.losses.CTC}]
    assert len(found) > 20
    assert {loss.fn.__name__ for loss in found if mixes(loss)} == losses._OF_PAIRS

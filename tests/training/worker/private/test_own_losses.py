"""Which losses of a step of the script count once for each replica."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from timonel.training.worker.private.loss_terms import Step


@pytest.mark.parametrize(("is_mean", "counts_often"), [(True, True), (False, False)])
def test_a_tape_adds_up_values_of_rows(is_mean: bool, counts_often: bool) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    seen = Step(model)

    @tf.function
    def step(x: tf.Tensor) -> None:
        rows = tf.square(model(x)[:, 0])
        seen.look(tf.reduce_mean(rows) if is_mean else rows)

    step.get_concrete_function(tf.TensorSpec((None, 3)))
    assert seen.has_own_terms == counts_often

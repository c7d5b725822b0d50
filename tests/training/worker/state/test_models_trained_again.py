"""Values of variables that training creates, for a model whose call of ``fit`` has finished."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from timonel.training.worker.state.process_variables import ProcessVariables

pytestmark = pytest.mark.slow


def test_only_the_same_model_takes_what_its_training_created() -> None:
    variables = ProcessVariables()
    first, second = keras.Sequential(), keras.Sequential()
    with variables.watched():
        variables.begin(())
        created = tf.Variable(5, dtype=tf.int64, name="count")
        saved = variables.capture(())
        assert [state["values"] for state in saved] == [np.int64(5)]
    del created
    resumed = ProcessVariables()
    with resumed.watched():
        resumed.take_back(first)
        resumed.restore(saved, ())
        assert len(resumed.missing) == 1
        resumed.set_aside(first)
        assert tf.Variable(0, dtype=tf.int64, name="count").numpy() == 0
        resumed.take_back(second)
        assert tf.Variable(0, dtype=tf.int64, name="count").numpy() == 0
        resumed.take_back(first)
        assert tf.Variable(0, dtype=tf.int64, name="count").numpy() == 5
        assert resumed.missing == []


def test_a_variable_that_a_callback_has_set_on_the_model() -> None:
    def script() -> keras.Model:
        return keras.Sequential()

    variables = ProcessVariables()
    with variables.watched():
        model = script()
        variables.begin(())
        others = [tf.Variable(number, trainable=False) for number in (1.0, 2.0)]
        model.average = tf.Variable([3.0, 4.0], trainable=False)
        model.last = others[1]
        saved, attributes = variables.capture(()), variables.attributes_of(model)
    resumed = ProcessVariables()
    with resumed.watched():
        model = script()
        resumed.restore(saved, ())
        resumed.set_again(model, attributes)
    assert model.average.numpy().tolist() == [3.0, 4.0]
    assert model.last.numpy() == 2.0
    assert not model.last.trainable
    assert len(resumed.missing) == 1


def test_a_variable_that_tf_keras_counts_among_the_models() -> None:
    variables = ProcessVariables()
    with variables.watched():
        model = tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1)])
        model.last = tf.Variable(1.0, trainable=False)
        attributes, owned = variables.attributes_of(model), variables.keys_of(model.variables)
    resumed = ProcessVariables()
    with resumed.watched():
        model = tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1)])
        resumed.set_again(model, attributes, set(owned))
    assert len(model.variables) == len(owned)


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_metrics_that_a_first_step_builds_begin_anew(flavour: Any) -> None:
    def fit(saved: list[Any]) -> tuple[list[Any], list[float]]:
        flavour.backend.clear_session()
        variables = ProcessVariables()
        with variables.watched():
            model = flavour.Sequential(
                [flavour.Input((2,)), flavour.layers.Dense(1, kernel_initializer="ones")]
            )
            model.compile(flavour.optimizers.SGD(0.0), "mse", metrics=["mae"])
            variables.begin(())
            variables.restore(saved, ())
            history = model.fit(np.eye(2), np.ones(2), verbose=0).history
            return variables.capture(()), history["mae"]

    saved, expected = fit([])
    assert fit(saved)[1] == expected

"""Values of variables that training creates, for a model whose call of ``fit`` has finished."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

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

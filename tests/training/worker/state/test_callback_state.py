"""Callbacks of Keras that are restored after any epoch decide as ones that were not interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from timonel.training.worker.state import callback_state

EPOCHS = 8
CALLBACKS: dict[str, Callable[[Any], Any]] = {
    "smaller learning rate": lambda found: found.callbacks.ReduceLROnPlateau(
        "loss", min_delta=0.1, patience=1, factor=0.5
    ),
    "smaller learning rate, largest value": lambda found: found.callbacks.ReduceLROnPlateau(
        "accuracy", mode="max", min_delta=0.1, patience=1, cooldown=1, factor=0.5
    ),
    "stop": lambda found: found.callbacks.EarlyStopping("loss", min_delta=0.1, patience=3),
    "stop at the largest value": lambda found: found.callbacks.EarlyStopping(
        "accuracy", mode="max", min_delta=0.1, patience=3, start_from_epoch=1
    ),
}


def compiled() -> keras.Model:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["accuracy"])
    model.train_on_batch(np.zeros((1, 2)), np.zeros((1, 1)))
    return model


def decisions(make: Callable[[Any], Any], values: list[float], cut: int | None) -> list[Any]:
    """Return the learning rate and whether to stop after each epoch, of a job cut once."""
    model = compiled()
    callback = make(keras)
    callback.set_model(model)
    callback.on_train_begin()
    found: list[Any] = []
    for epoch, value in enumerate(values):
        if epoch == cut:
            saved, others = callback_state.capture([callback])
            assert not others
            callback = make(keras)
            callback.set_model(model)
            callback.on_train_begin()
            assert not callback_state.restore([callback], saved)
        callback.on_epoch_end(epoch, {"loss": value, "accuracy": 1 - value})
        rate = float(model.optimizer.learning_rate)
        found.append((rate, model.stop_training, callback.wait, callback.best))
    return found


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("cut", range(1, EPOCHS))
@pytest.mark.parametrize("name", CALLBACKS)
def test_decisions_after_a_restart(name: str, cut: int) -> None:
    tf.random.set_seed(0)
    values = [0.9, 0.7, 0.69, 0.65, 0.5, 0.49, 0.48, 0.47]
    expected = decisions(CALLBACKS[name], values, None)
    assert len({each[:2] for each in expected}) > 1, "nothing was decided"
    assert decisions(CALLBACKS[name], values, cut) == expected

"""Models that a resumed job builds from its data, without a move of their order."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from timonel.training.worker.inputs.building import ensure_built, model_variables

ROWS = 24


def models(used: ModuleType) -> dict[str, tuple[Any, Any]]:
    """Return models that are built by their first call, with the data of each."""
    layers = used.layers

    class Dense(used.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = layers.BatchNormalization(), layers.Dense(1)

        def call(self, x: Any, training: Any = None) -> Any:
            return self.out(self.norm(x, training=training))

    class Texts(used.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rnn = layers.Embedding(9, 4), layers.GRU(3)
            self.out = layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.out(self.rnn(self.embedding(x)))

    class Images(used.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pool = layers.Conv2D(2, 3), layers.GlobalAveragePooling2D()
            self.out = layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.out(self.pool(self.conv(x)))

    class Several(used.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = layers.Dense(2), layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.a(x["a"]) + self.b(x["b"])

    numbers = np.arange(ROWS * 5, dtype="float32").reshape(ROWS, 5)
    return {
        "dense": (Dense(), numbers),
        "texts": (Texts(), np.arange(ROWS * 6).reshape(ROWS, 6) % 9),
        "images": (Images(), np.arange(ROWS * 64, dtype="float32").reshape(ROWS, 8, 8, 1)),
        "several": (Several(), {"a": numbers, "b": numbers[:, :2]}),
    }


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("kind", ["dense", "texts", "images", "several"])
@pytest.mark.parametrize("used", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_the_order_of_a_shuffled_pipeline_stays(used: ModuleType, kind: str) -> None:
    model, x = models(used)[kind]
    model.compile("adam", "mse")

    def pipeline() -> tf.data.Dataset:
        found = tf.data.Dataset.from_tensor_slices((x, np.arange(ROWS, dtype="float32")))
        return found.shuffle(ROWS, seed=4).batch(5)

    def order(data: tf.data.Dataset) -> list[float]:
        return [float(value) for _, y in data for value in y]

    calm, resumed = pipeline(), pipeline()
    ensure_built(used, model, resumed)
    assert model.built
    assert model.trainable_variables
    assert order(resumed) == order(calm)
    assert order(resumed) == order(calm)
    before = [np.array(each) for each in model.get_weights()]
    model.predict(x, batch_size=5, verbose=0)
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)


class Siamese(keras.Model):
    """Takes both arrays of a batch, which Keras takes for inputs and targets."""

    def __init__(self) -> None:
        super().__init__()
        self.part = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])

    def call(self, inputs: Any) -> Any:
        one, other = inputs
        return self.part(one) - self.part(other)


class Stepping(Siamese):
    """The same with a step that gives them to it."""

    def train_step(self, data: Any) -> Any:
        return {"loss": tf.reduce_sum(self(data))}


def test_a_model_whose_own_step_takes_other_data_is_left_as_it_is() -> None:
    rows = np.zeros((3, 4), "float32")
    data = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(3)
    model, without_step = Stepping(), Siamese()
    model.compile("sgd")
    ensure_built(keras, model, data)
    assert len(model_variables(model)) == 2
    with pytest.raises(TypeError, match="Siamese"):
        ensure_built(keras, without_step, data)

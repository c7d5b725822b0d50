"""Train an ensemble with one device per member by one plain ``fit``.

timonel train examples/model_parallel/ensemble.py --strategy one-device --devices-per-worker 2
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from timonel.training import context

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
devices = [device.name for device in tf.config.list_logical_devices(kind)]


class Member(keras.layers.Layer):
    """Classifier with its weights and operations on one device."""

    def __init__(self, device: str, seed: int) -> None:
        super().__init__(name=f"member_{seed}")
        self.device = device
        start = keras.initializers.GlorotUniform(seed)
        self.parts = [
            keras.layers.Dense(128, "relu", kernel_initializer=start),
            keras.layers.Dense(10, "softmax", kernel_initializer=start),
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        with tf.device(self.device):
            self.parts[0].build(input_shape)
            self.parts[1].build((None, 128))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        with tf.device(self.device):
            return self.parts[1](self.parts[0](inputs))


x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16
inputs = keras.Input((64,))
members = [Member(device, seed)(inputs) for seed, device in enumerate(devices)]

# Each member has a loss of its own, so that none learns from the others; the devices work at the
# same time, and nothing crosses between them but the batch.
together = keras.Model(inputs, members)
together.compile(
    "adam",
    ["sparse_categorical_crossentropy"] * len(members),
    metrics=[["accuracy"] for _ in members],
)
together.fit(x, [y] * len(members), epochs=options.epochs)

average = keras.layers.Average()(members) if len(members) > 1 else members[0]
ensemble = keras.Model(inputs, average)
ensemble.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
print("the ensemble's loss and accuracy:", ensemble.evaluate(x, y, verbose=0))
for weight in together.trainable_weights:
    print("weights of shape", tuple(weight.shape), "are on", weight.value.device)
context().export(ensemble)

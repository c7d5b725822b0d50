"""Train one network with its layers on two devices by plain ``fit``.

    timonel train examples/model_parallel/layers.py --strategy one-device --devices-per-worker 2

With --set split=0, all layers are on the first device, for comparison.
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--split", type=int, default=1, help="1: on two devices, 0: on one")
parser.add_argument("--width", type=int, default=512, help="units of each hidden layer")
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()


class On(keras.layers.Wrapper):
    """Wrapper that places a layer's weights and operations on one device."""

    def __init__(self, layer: keras.layers.Layer, device: str) -> None:
        super().__init__(layer)
        self.device = device

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        with tf.device(self.device):
            super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        with tf.device(self.device):
            return self.layer(inputs)


kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
first, second = f"{kind}:0", f"{kind}:{options.split}"
x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16

model = keras.Sequential(
    [
        keras.Input((64,)),
        On(keras.layers.Dense(options.width, "relu"), first),
        On(keras.layers.Dense(options.width, "relu"), first),
        # Here the activations cross: batch x width numbers forwards, their gradients backwards.
        On(keras.layers.Dense(options.width, "relu"), second),
        On(keras.layers.Dense(10, "softmax"), second),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=options.batch, epochs=options.epochs)
for weight in model.trainable_weights:
    print("weights of shape", tuple(weight.shape), "are on", weight.value.device)
crossing = 2 * options.batch * options.width * 4 if options.split else 0
print("bytes that cross between devices in a step:", crossing)

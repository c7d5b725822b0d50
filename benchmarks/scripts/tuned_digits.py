"""A small convolutional network on handwritten digits, with flags for what a study searches.

Plain Keras: it is run by ``python`` and as trials alike. Its last line is the validation accuracy.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--digits", required=True, help="an .npz of x and y")
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--units", type=int, default=64, help="of the hidden dense layer")
parser.add_argument("--filters", type=int, default=16, help="of each convolution")
parser.add_argument("--epochs", type=int, default=27)
parser.add_argument("--threads", type=int, help="of TensorFlow; its own choice by default")
options = parser.parse_args()
if options.threads:
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, options.threads))
keras.utils.set_random_seed(0)

with np.load(options.digits) as file:
    x, y = file["x"].reshape(-1, 16, 16, 1), file["y"]
order = np.random.default_rng(0).permutation(len(x))
x, y = x[order], y[order]
model = keras.Sequential(
    [
        keras.Input((16, 16, 1)),
        keras.layers.Conv2D(options.filters, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(options.filters, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(options.units, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    keras.optimizers.SGD(options.learning_rate, 0.9),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(
    x[:1200],
    y[:1200],
    batch_size=16,
    epochs=options.epochs,
    validation_data=(x[1200:], y[1200:]),
    verbose=0,
)
print(history.history["val_accuracy"][-1])

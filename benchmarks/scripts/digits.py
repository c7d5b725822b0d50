"""A dense network on handwritten digits, of any size; its data lies in one NumPy file.

Plain Keras, whichever of the two TensorFlow is set to: it is run by ``python`` and by
``timonel train`` alike.
"""

import argparse

import numpy as np
import steps
import tensorflow as tf
from tensorflow import keras

parser = argparse.ArgumentParser()
parser.add_argument("--digits", required=True, help="an .npz of x and y")
parser.add_argument("--units", default="256,128", help="of the hidden layers")
parser.add_argument("--activation", default="relu", help="of the hidden layers")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--steps-per-epoch", type=int, default=20)
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--shuffle", action="store_true")
parser.add_argument("--weights", help="an .npz for the weights at the end")
steps.add_options(parser)
options = parser.parse_args()

with np.load(options.digits) as file:
    x, y = file["x"], file["y"]
data = tf.data.Dataset.from_tensor_slices((x, y))
if options.shuffle:
    data = data.shuffle(len(x), seed=0)
data = data.batch(options.batch_size, drop_remainder=True).repeat()
units = [int(number) for number in options.units.split(",")]


def dense(number, units, activation):
    # Seeds of its own for each layer: the same beginning, however it is distributed.
    start = keras.initializers.GlorotUniform(seed=number)
    return keras.layers.Dense(units, activation, kernel_initializer=start)


model = keras.Sequential(
    [
        keras.Input(x.shape[1:]),
        *(dense(number, size, options.activation) for number, size in enumerate(units)),
        dense(len(units), 10, "softmax"),
    ]
)
model.compile(keras.optimizers.SGD(options.learning_rate), "sparse_categorical_crossentropy")
model.fit(
    data,
    epochs=options.epochs,
    steps_per_epoch=options.steps_per_epoch,
    callbacks=steps.callbacks(keras, options, model),
    verbose=0,
)
if options.weights and steps.leads():
    np.savez(options.weights, *model.get_weights())

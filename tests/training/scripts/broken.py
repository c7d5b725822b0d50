"""A script with a mistake in its own code, inside a call of Keras."""

import keras
import numpy as np


class Mistaken(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise ValueError("the user's mistake")


model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.zeros((4, 2)), np.zeros((4, 1)), callbacks=[Mistaken()])

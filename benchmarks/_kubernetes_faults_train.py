"""A user's script, plain Keras, whose steps take some time; prints each one."""

import sys
import time

import keras
import numpy as np

epochs, steps, step_s = int(sys.argv[1]), int(sys.argv[2]), 0.05


class Steps(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):  # noqa: ARG002
        self.before = epoch * steps

    def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002
        time.sleep(step_s)
        print("STEP", self.before + batch + 1, time.time(), flush=True)


x = np.random.default_rng(0).random((16 * steps, 4), np.float32)
y = (x.sum(1) > 2).astype("int64")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
model.compile("sgd", "sparse_categorical_crossentropy")
model.fit(x, y, batch_size=16, epochs=epochs, callbacks=[Steps()], verbose=0)

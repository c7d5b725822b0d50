"""A user's script, plain Keras; prints when it starts and ends its first step."""

import time

print("MARK line-0", time.time(), flush=True)

import keras  # noqa: E402
import numpy as np  # noqa: E402


class FirstStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002
        if batch == 0:
            print("MARK first-step", time.time(), flush=True)


x = np.random.default_rng(0).random((64, 4), np.float32)
y = (x.sum(1) > 2).astype("int64")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
model.compile("sgd", "sparse_categorical_crossentropy")
model.fit(x, y, batch_size=16, callbacks=[FirstStep()])

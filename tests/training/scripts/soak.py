"""Two fits whose steps take their time, so that what disturbs them lands inside them."""

import argparse
import hashlib
import json
import time

import keras
import numpy as np

import timonel.data
from timonel.training import context

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--more-epochs", type=int, default=0)
parser.add_argument("--export", action="store_true")
options = parser.parse_args()


class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.05)


def digest():
    content = b"".join(np.ascontiguousarray(weight).tobytes() for weight in model.get_weights())
    return hashlib.sha256(content).hexdigest()


def told(history):
    return {"epochs": history.epoch, "history": history.history, "weights": digest()}


job = context()
train = timonel.data.load(batch_size=16)
validation = timonel.data.load(split="validation", batch_size=16)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(8, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(2, "softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
fits = []
for epochs in (options.epochs, options.more_epochs):
    if epochs:
        history = model.fit(train, validation_data=validation, epochs=epochs, callbacks=[Slow()])
        fits.append(told(history))
if options.export:
    job.export(
        keras.Sequential([model, keras.layers.Rescaling(100.0)]),
        labels=("dark-left", "dark-right"),
    )
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps({"fits": fits}))

"""A fit with all that has state between two steps; TF_USE_LEGACY_KERAS says in which Keras."""

import argparse
import hashlib
import json
import time

import numpy as np
import tensorflow as tf

import timonel.data
from timonel.training import context

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--data-kind", default="load")
parser.add_argument("--sleep", type=float, default=0.05)
parser.add_argument("--nan-at", type=int, default=-1)
options = parser.parse_args()
keras = tf.keras
job = context()


class Slow(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(options.sleep)

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([batch, float(logs["loss"])])
        if len(self.seen) == options.nan_at:
            weights = self.model.get_weights()
            self.model.set_weights([weight * np.nan for weight in weights])


def data():
    if options.data_kind == "load":
        return {"x": timonel.data.load(batch_size=16)}
    random = np.random.default_rng(3)
    x = random.normal(size=(96, 8, 8, 1)).astype("float32")
    return {"x": x, "y": (x.mean(axis=(1, 2, 3)) > 0).astype("int64"), "batch_size": 16}


model = keras.Sequential(
    [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(16, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(2, "softmax"),
    ]
)
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
slow = Slow()
history = model.fit(
    **data(),
    validation_data=timonel.data.load(split="validation", batch_size=16),
    epochs=options.epochs,
    callbacks=[
        slow,
        keras.callbacks.EarlyStopping("val_loss", patience=6, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5),
    ],
)
weights = b"".join(np.ascontiguousarray(weight).tobytes() for weight in model.get_weights())
result = {
    "epochs": history.epoch,
    "history": {name: [float(v) for v in values] for name, values in history.history.items()},
    "steps": slow.seen,
    "weights": hashlib.sha256(weights).hexdigest(),
    "values": [weight.tolist() for weight in model.get_weights()],
}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(result))

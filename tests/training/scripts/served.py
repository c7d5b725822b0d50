"""A user's script for parameter servers: every row counts itself, so that none is lost or twice."""

import argparse
import json
import time

import keras
import numpy as np
import tensorflow as tf

from timonel.training import context

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--rows", type=int, default=320)
parser.add_argument("--pause", type=float, help="seconds between steps; tells where it is, too")
parser.add_argument("--last-after", help="file of the job that the last epoch waits for")
options = parser.parse_args()


class Sum(keras.metrics.Metric):
    """The sum of the rows' numbers, or their count."""

    def __init__(self, name: str, *, numbers: bool) -> None:
        super().__init__(name=name)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")
        self.numbers = numbers

    def update_state(self, y_true, y_pred, sample_weight=None):
        values = y_true[:, 1] if self.numbers else tf.ones_like(y_true[:, 1])
        self.total.assign_add(tf.reduce_sum(values))

    def result(self):
        return tf.convert_to_tensor(self.total)


def loss(y_true, y_pred):
    return keras.losses.binary_crossentropy(y_true[:, :1], y_pred)


class Told(keras.callbacks.Callback):
    """Takes its time, and writes down where training is."""

    def on_epoch_begin(self, epoch, logs=None):
        if options.last_after is not None and epoch == options.epochs - 1:
            while not (context().job_dir / options.last_after).exists():
                time.sleep(0.05)

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(options.pause)
        self.tell("step")

    def on_test_batch_end(self, batch, logs=None):
        time.sleep(options.pause)
        self.tell("validation")

    def on_epoch_end(self, epoch, logs=None):
        self.tell("epoch")

    def tell(self, where):
        with (context().job_dir / f"{context().cluster.task_id}.told").open("a") as file:
            file.write(f"{where}\n")


rows = options.rows
x = np.random.default_rng(0).random((rows, 8)).astype("float32")
y = np.stack([x.sum(1) > 4, np.arange(rows)], 1).astype("float32")
model = keras.Sequential(
    [
        keras.layers.Input((8,)),
        keras.layers.Dense(64, "relu"),
        keras.layers.Dense(1, "sigmoid"),
    ]
)
model.compile(
    # Small enough for the loss to fall steadily with weights that are several updates old.
    keras.optimizers.Adam(0.002),
    loss,
    metrics=[Sum("count", numbers=False), Sum("numbers", numbers=True)],
)
history = model.fit(
    x,
    y,
    batch_size=8,
    epochs=options.epochs,
    validation_data=(x[:64], y[:64]),
    callbacks=[] if options.pause is None else [Told()],
    verbose=2,
)
job = context()
result = {
    "keras": keras.__name__,
    "history": {name: [float(value) for value in found] for name, found in history.history.items()},
    "epochs": history.epoch,
    "iterations": int(model.optimizer.iterations.numpy()),
    "devices": sorted({getattr(v, "value", v).device for v in model.trainable_variables})
    if keras.__name__ == "keras"
    else sorted({v.device for v in model.trainable_variables}),
    "evaluated": model.evaluate(x[:64], y[:64], verbose=0),
    "predicted": np.asarray(model.predict(x[:4], verbose=0)).tolist(),
}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(result))

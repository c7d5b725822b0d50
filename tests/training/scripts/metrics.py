"""Metrics that are built late, renamed or nested; and a model that is loaded."""

import json

import keras
import numpy as np
import tensorflow as tf

from timonel.training import context

x = np.random.default_rng(0).random((64, 4), np.float32)
y = np.eye(2, dtype="float32")[(x.sum(1) > 2).astype("int64")]


class Renaming(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2, "softmax")
        self.tracker = keras.metrics.Mean(name="tracker")
        self.accuracy = keras.metrics.CategoricalAccuracy(name="accuracy")

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        rows, labels = data
        with tf.GradientTape() as tape:
            found = self(rows, training=True)
            loss = keras.ops.mean(keras.losses.categorical_crossentropy(labels, found))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        self.accuracy.update_state(labels, found)
        return {
            "my_loss": self.tracker.result(),
            "group": {"my_accuracy": self.accuracy.result()},
            "constant": 3.0,
            "mean": keras.ops.mean(found, axis=0),
        }

    @property
    def metrics(self):
        return [self.tracker, self.accuracy]


judged = {"loss": []}


class Judge(keras.callbacks.Callback):
    """Evaluates another model between batches and after epochs."""

    def __init__(self):
        super().__init__()
        self.other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
        self.other.compile("sgd", "categorical_crossentropy")

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.on_epoch_end(batch)

    def on_epoch_end(self, epoch, logs=None):
        judged["loss"].append(float(self.other.evaluate(x, y, verbose=0)))


def fit(model):
    # A job has an order of its own for what it shuffles.
    history = model.fit(
        x,
        y,
        epochs=2,
        batch_size=16,
        shuffle=False,
        verbose=0,
        validation_data=given(model),
        callbacks=[Judge()],
    )
    return {name: np.asarray(found).tolist() for name, found in history.history.items()}


def given(model):
    return None if isinstance(model, Renaming) else (x, y)


keras.utils.set_random_seed(3)
late = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
late.compile(
    "sgd",
    "categorical_crossentropy",
    metrics=[keras.metrics.F1Score(name="f1"), keras.metrics.AUC(name="auc", multi_label=True)],
)
renaming = Renaming()
renaming.compile("sgd")
job = context()
result = {"late": fit(late), "renamed": fit(renaming), "judged": judged}
job.job_dir.mkdir(parents=True, exist_ok=True)
place = str(job.job_dir / f"{job.cluster.task_id}.keras")
late.save(place)
loaded = keras.models.load_model(place)
evaluated = loaded.evaluate(x, y, verbose=0, return_dict=True)
result["loaded"] = {name: np.asarray(found).tolist() for name, found in evaluated.items()}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(result))

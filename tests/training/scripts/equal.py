"""A user's script that trains the same on its own and divided among workers."""

import json

import keras
import numpy as np

from timonel.training import context

if keras.__name__ == "tf_keras":  # as jobs do, so that draws can be saved and restored
    keras.backend.experimental.enable_tf_random_generator()
keras.utils.set_random_seed(3)
calls = []


class Recorder(keras.callbacks.Callback):
    """Notes what it is told, and changes the learning rate as schedules do."""

    def on_train_begin(self, logs=None):
        calls.append(["train_begin"])

    def on_epoch_begin(self, epoch, logs=None):
        calls.append(["epoch_begin", epoch])
        self.model.optimizer.learning_rate.assign(0.02 / (1 + epoch))

    def on_train_batch_begin(self, batch, logs=None):
        calls.append(["train_batch_begin", batch])

    def on_train_batch_end(self, batch, logs=None):
        calls.append(["train_batch_end", batch, sorted(logs)])

    def on_test_begin(self, logs=None):
        calls.append(["test_begin"])

    def on_test_batch_end(self, batch, logs=None):
        calls.append(["test_batch_end", batch, sorted(logs)])

    def on_test_end(self, logs=None):
        calls.append(["test_end", sorted(logs)])

    def on_epoch_end(self, epoch, logs=None):
        calls.append(["epoch_end", epoch, sorted(logs)])
        self.model.stop_training = epoch == 2

    def on_train_end(self, logs=None):
        calls.append(["train_end", sorted(logs)])


x = np.random.default_rng(0).random((101, 4)).astype("float32")
y = (x.sum(1) > 2).astype("int64")
model = keras.Sequential(
    [
        keras.layers.Input((4,)),
        keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(1e-3)),
        keras.layers.Dense(3, "softmax"),
    ]
)
model.compile(
    keras.optimizers.Adam(0.02),
    "sparse_categorical_crossentropy",
    metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
)
history = model.fit(
    x,
    y,
    batch_size=16,
    epochs=5,
    shuffle=False,
    validation_split=0.2,
    validation_freq=2,
    class_weight={0: 1.0, 1: 2.0, 2: 1.0},
    callbacks=[Recorder()],
    verbose=0,
)
# One row at a time is not divided, so that draws are those of one process too.
drawing = keras.Sequential(
    [
        keras.layers.Input((3,), dtype="int32"),
        keras.layers.Embedding(9, 4),
        keras.layers.Flatten(),
        # TensorFlow's generators, which tf-keras has, draw otherwise under a strategy.
        keras.layers.Dropout(0.5 if keras.__name__ == "keras" else 0.0, seed=3),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(3, "softmax"),
    ]
)
summed = {"gradient_accumulation_steps": 2} if keras.__name__ == "keras" else {}
drawing.compile(
    keras.optimizers.Adam(0.02, clipnorm=0.5, **summed), "sparse_categorical_crossentropy"
)
drawing.fit((x[:9, :3] * 9).astype("int32"), y[:9], batch_size=1, shuffle=False, verbose=0)
result = {
    "history": {name: [float(value) for value in found] for name, found in history.history.items()},
    "calls": calls,
    "evaluated": [float(value) for value in model.evaluate(x, y, verbose=0)],
    "predicted": model.predict(x[:5], verbose=0).tolist(),
    "weights": [
        np.asarray(weight).tolist() for weight in (*model.get_weights(), *drawing.get_weights())
    ],
}
job = context()
job.job_dir.mkdir(exist_ok=True)
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(result))

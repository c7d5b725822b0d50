"""A user's script that trains many small models, one after the other.

With batches that are not divided each must become what it becomes in one process.
"""

import json

import keras
import numpy as np
import tensorflow as tf

from timonel.errors import TimonelError
from timonel.training import context

if keras.__name__ == "tf_keras":  # as jobs do, so that draws can be saved and restored
    keras.backend.experimental.enable_tf_random_generator()
layers, optimizers = keras.layers, keras.optimizers
random = np.random.default_rng(0)
ROWS = 66
X = random.random((ROWS, 4)).astype("float32")
Y = (X.sum(1) > 2).astype("int64")
SUMS = X.sum(1, keepdims=True)
WORDS = random.integers(0, 20, (ROWS, 5)).astype("int32")
IMAGES = random.random((ROWS, 8, 8, 3)).astype("float32")
LOSS = "sparse_categorical_crossentropy"


class Own(keras.Model):
    """A train step of its own, whose log has the name of a metric that it leaves alone."""

    def __init__(self, times=1):
        super().__init__()
        self.dense, self.times = layers.Dense(1), times
        self.seen = self.add_weight(
            name="seen", shape=(), initializer="zeros", trainable=False, dtype="float32"
        )

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        for _ in range(self.times):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            trained = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        self.seen.assign_add(1.0)
        return {"loss": loss}


class OwnLoss(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3, "softmax")

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, y_pred))


def stacked(*inner, x=X, optimizer="adam", **options):
    dtype = "int32" if x is WORDS else "float32"
    begin = layers.Input(x.shape[1:], dtype=dtype)
    model = keras.Sequential([begin, *inner, layers.Flatten(), layers.Dense(3, "softmax")])
    model.compile(optimizer, LOSS, **options)
    return model, {"x": x, "y": Y}


def compiled(model, **options):
    model.compile("adam", **options)
    return model


def texts():
    words = np.array(["a b", "b c", "c"])[np.arange(ROWS) % 3].reshape(-1, 1)
    model = keras.Sequential(
        [
            layers.Input((1,), dtype="string"),
            layers.TextVectorization(vocabulary=["a", "b", "c"], output_sequence_length=3),
            layers.Embedding(6, 3),
            layers.Flatten(),
            layers.Dense(3, "softmax"),
        ]
    )
    return compiled(model, loss=LOSS), {
        "x": tf.data.Dataset.from_tensor_slices((words, Y)).batch(16)
    }


def lengths():
    """Batches of ever other lengths, for as many steps as there are."""
    pairs = [(WORDS[n : n + 11, : 3 + n % 3], Y[n : n + 11]) for n in range(0, ROWS, 11)]
    spec = tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None,), tf.int64)
    data = tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=spec)
    inner = [layers.Embedding(20, 6), layers.GlobalAveragePooling1D(), layers.Dense(3, "softmax")]
    model = keras.Sequential([layers.Input((None,), dtype="int32"), *inner])
    return compiled(model, loss=LOSS), {"x": data.repeat(), "steps_per_epoch": 6}


def two_ended():
    begin = layers.Input((4,), name="a"), layers.Input((5,), name="b", dtype="int32")
    words = layers.Flatten()(layers.Embedding(20, 3)(begin[1]))
    both = layers.Concatenate()([layers.Dense(4, "tanh")(begin[0]), words])
    ends = {"p": layers.Dense(3, "softmax", name="p")(both), "q": layers.Dense(1, name="q")(both)}
    model = keras.Model({"a": begin[0], "b": begin[1]}, ends)
    model.compile("adam", {"p": LOSS, "q": "mse"}, metrics={"p": ["accuracy"], "q": ["mae"]})
    return model, {"x": {"a": X, "b": WORDS}, "y": {"p": Y, "q": SUMS}}


def in_precision(name):
    policy = keras.mixed_precision.set_global_policy
    policy(name)
    try:
        return stacked(layers.Dense(8, "tanh"))
    finally:
        policy("float32")


def weighed():
    model, given = stacked(metrics=["accuracy"], weighted_metrics=["accuracy"])
    weights = (1 + np.arange(ROWS) % 3).astype("float32")
    return model, {**given, "sample_weight": weights, "validation_data": (X, Y, weights)}


def called_back():
    model, given = stacked(optimizer=optimizers.SGD(1.5))
    callbacks = [
        keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5, min_delta=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    ]
    return model, {**given, "callbacks": callbacks, "epochs": 6, "validation_data": (X, Y)}


AVERAGED = {"weight_decay": 0.1, "clipnorm": 0.3, "use_ema": True, "ema_overwrite_frequency": 4}
MODELS = {
    "batchnorm": lambda: stacked(layers.BatchNormalization(momentum=0.8)),
    "callbacks": called_back,
    "decay_and_average": lambda: stacked(optimizer=optimizers.AdamW(0.02, **AVERAGED)),
    "dropout": lambda: stacked(layers.Dropout(0.5), layers.GaussianNoise(0.1)),
    "embedding": lambda: stacked(layers.Embedding(20, 6, mask_zero=True), layers.GRU(4), x=WORDS),
    "images": lambda: stacked(layers.RandomFlip(), layers.Conv2D(4, 3), x=IMAGES),
    "in_several_steps": lambda: stacked(steps_per_execution=2),
    "lengths": lengths,
    "own_loss": lambda: (compiled(OwnLoss()), {"x": X, "y": Y}),
    "own_step": lambda: (compiled(Own(), loss="mse"), {"x": X, "y": SUMS}),
    "schedule": lambda: stacked(
        optimizer=optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 3, 0.7))
    ),
    "texts": texts,
    "two_ended": two_ended,
    "weighed": weighed,
    "bfloat16": lambda: in_precision("mixed_bfloat16"),
    "refused_eager": lambda: stacked(run_eagerly=True),
    "refused_twice": lambda: (compiled(Own(times=2)), {"x": X, "y": SUMS}),
    "refused_xla": lambda: stacked(jit_compile=True),
}
if keras.__name__ == "keras":
    MODELS["accumulated"] = lambda: stacked(
        layers.Embedding(20, 6), x=WORDS, optimizer=optimizers.Adam(gradient_accumulation_steps=3)
    )
    MODELS["float16"] = lambda: in_precision("mixed_float16")

results = {}
for name, make in MODELS.items():
    keras.utils.set_random_seed(5)
    model, given = make()
    given.setdefault("epochs", 2)
    if not isinstance(given["x"], tf.data.Dataset):
        given["batch_size"] = 16
    try:
        history = model.fit(shuffle=False, verbose=0, **given).history
    except TimonelError as error:
        results[name] = {"error": str(error)}
        continue
    results[name] = {
        "history": {key: np.asarray(found, "float64").tolist() for key, found in history.items()},
        "weights": [np.asarray(weight, "float64").tolist() for weight in model.get_weights()],
        "iterations": int(model.optimizer.iterations.numpy()),
    }
job = context()
job.job_dir.mkdir(exist_ok=True)
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(results))

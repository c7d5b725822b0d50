"""Losses and weights of two logical devices are those of one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import importlib, json, sys
import numpy as np
import tensorflow as tf
from timonel.errors import SpecError
from timonel.training.worker.inputs import sharding
from timonel.training.worker.private import keras_fit, replica_steps

keras = importlib.import_module(sys.argv[1])
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
one = tf.distribute.get_strategy()
# Iterators wait for tf.data's tuner when they are destroyed.
untuned = tf.data.Options()
untuned.autotune.enabled = False
one.experimental_distribute_dataset = lambda dataset, options=None: dataset.with_options(untuned)
replica_steps.install(keras, print)
sharding.install(mirrored, 1)

ROWS = 8  # batches of 4, 3 and 1: equal parts, one row more on one replica, and none on one
draws = np.random.default_rng(0)
x = draws.normal(size=(ROWS, 3)).astype("float32")
y = (draws.normal(size=(ROWS, 1)) > 0).astype("float32")
weights = draws.uniform(0.1, 3, ROWS).astype("float32")
tokens = draws.integers(0, 4, (ROWS, 5))
labels = draws.integers(0, 2, (ROWS, 5, 1)).astype("float32")
mse = keras.losses.MeanSquaredError


def dense(**kwargs):
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, "sigmoid", kernel_initializer="ones", **kwargs)]
    )


def masked():
    return keras.Sequential([
        keras.Input((5,), dtype="int32"),
        keras.layers.Embedding(4, 2, mask_zero=True, embeddings_initializer="ones"),
        keras.layers.Dense(1, "sigmoid", kernel_initializer="ones"),
    ])


def mean_of_all(true, predicted):
    return tf.reduce_mean(tf.square(true - predicted))


def batched(*parts):
    def rows(begin, end):
        return tf.data.Dataset.from_tensor_slices(
            tf.nest.map_structure(lambda value: value[begin:end], parts)
        ).batch(4)

    return rows(0, 4).concatenate(rows(4, 7)).concatenate(rows(7, 8))


def fit(strategy, build, data, options, **given):
    with strategy.scope():
        model = build()
        model.compile(keras.optimizers.SGD(0.1), **options())
    if "sample_weight" in given:
        data = (*data, given.pop("sample_weight"))
    sharding.expect_training_data()
    history = model.fit(batched(*data), epochs=2, verbose=0, **given).history
    found = model.evaluate(batched(*data), verbose=0, return_dict=True)
    values = [*history.values(), *found.values(), *model.get_weights()]
    return np.concatenate([np.ravel(value) for value in values])


def auc():
    metrics = [keras.metrics.AUC()]
    return {"loss": "binary_crossentropy", "metrics": metrics}


def sum_of_all(true, predicted):
    return tf.reduce_sum(tf.square(true - predicted))


def root(true, predicted):
    return tf.sqrt(tf.reduce_mean(tf.square(true - predicted)))


def of_losses(true, predicted):
    return mse()(true, predicted) + mean_of_all(true, predicted)


def per_row(true, predicted):
    return tf.reduce_mean(tf.square(true - predicted), axis=-1)


def similarities(true, predicted):
    rows = tf.concat([predicted, 1 - predicted, true], 1)
    return tf.matmul(rows, rows, transpose_b=True)


def of_pairs(true, predicted):
    return tf.reduce_sum(tf.nn.log_softmax(similarities(true, predicted)), 1)


class Pairs(mse):
    def call(self, true, predicted):
        return of_pairs(true, predicted)


def mean_of_pairs(true, predicted):
    return tf.reduce_mean(of_pairs(true, predicted))


def of_neighbours(true, predicted):
    rows = predicted - true + tf.cumsum(predicted)
    return tf.reduce_sum(tf.square(rows - tf.roll(rows, 1, 0)), 1)


def functions(function):
    return dense, (x, y), lambda: {"loss": function, "metrics": [function]}


class Adds(keras.layers.Layer):
    def __init__(self, term):
        super().__init__()
        self.term = term

    def call(self, value):
        for term in self.term if isinstance(self.term, list) else [self.term]:
            self.add_loss(term(value))
        return value


def adding(term):
    def build():
        return keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones"), Adds(term),
             keras.layers.Dense(1, kernel_initializer="ones")]
        )

    return build, (x, y), lambda: {"loss": "mse"}


def two_outputs():
    given = keras.Input((3,))
    hidden = keras.layers.Dense(2, kernel_initializer="ones")(given)
    outputs = {name: keras.layers.Dense(1, kernel_initializer="ones", name=name)(hidden)
               for name in ("a", "b")}
    return keras.Model(given, outputs)


class OwnMean(keras.Sequential):
    def __init__(self, layers):
        super().__init__(layers)
        self.seen = keras.metrics.Mean(name="seen")
        self.average = keras.metrics.Mean(name="average")

    @property
    def metrics(self):
        return [self.seen, self.average]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.seen.update_state(loss)
        self.average.update_state(tf.reduce_mean(tf.abs(y)))
        return self.logs(loss)

    def logs(self, loss):
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        x, y = data
        self.seen.update_state(self.compute_loss(x=x, y=y, y_pred=self(x)))
        self.average.update_state(tf.reduce_mean(tf.abs(y)))
        return {metric.name: metric.result() for metric in self.metrics}


class OwnLog(OwnMean):
    def logs(self, loss):
        return {"own": loss}


def own(kind):
    regularizers = {"kernel_regularizer": "l2", "activity_regularizer": "l2"}
    return lambda: kind(
        [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones", **regularizers)]
    )


class Quotient(keras.metrics.Metric):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = self.add_weight(shape=(2,), initializer="zeros", name="parts")

    def update_state(self, values):
        self.parts.assign_add([tf.reduce_sum(values), tf.cast(tf.size(values), tf.float32)])

    def result(self):
        return self.parts[0] / self.parts[1]

    def reset_state(self):
        self.parts.assign(tf.zeros([2]))


class PartOfMetrics(OwnMean):
    def __init__(self, layers):
        super().__init__(layers)
        self.total = keras.metrics.Sum(name="total")
        self.quotient = Quotient(name="quotient")

    @property
    def metrics(self):
        return [*super().metrics, self.total, self.quotient]

    def logs(self, loss):
        return {}

    def train_step(self, data):
        super().train_step(data)
        return self.some(data)

    def test_step(self, data):
        super().test_step(data)
        return self.some(data)

    def some(self, data):
        self.total.update_state(tf.abs(data[1]) + 1)
        self.quotient.update_state(tf.square(data[1] - self(data[0])))
        totals = {"total": self.total.result()}
        nested = {"inner": totals} if keras.__name__ == "keras" else totals
        return {**nested, "root": tf.sqrt(self.quotient.result())}


class UnlistedMetrics(OwnMean):
    def __init__(self, layers):
        super().__init__(layers)
        self.error = keras.metrics.MeanAbsoluteError(name="error")
        self.elsewhere = [keras.metrics.Sum(name="elsewhere")]

    def train_step(self, data):
        return {**super().train_step(data), **self.others(*data)}

    def test_step(self, data):
        return {**super().test_step(data), **self.others(*data)}

    def others(self, true, data):
        self.error.update_state(data, self(true))
        self.elsewhere[0].update_state(tf.abs(data) + 1)
        return {"error": self.error.result(), "elsewhere": self.elsewhere[0].result()}


class OwnMetrics(keras.Sequential):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        return {"twice": 2 * found["binary_accuracy"]}


class Tracks(keras.layers.Layer):
    def call(self, value):
        self.add_metric(tf.reduce_mean(value), name="mean")
        self.add_metric(tf.reduce_sum(value), name="sum")
        self.add_metric(value, name="rows")
        return value


def tracking():
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones"), Tracks()]
    )


cases = {
    "regularizers": (
        lambda: dense(kernel_regularizer="l2", activity_regularizer="l2"),
        (x, y),
        lambda: {"loss": "mse"},
    ),
    "class weights": (dense, (x, y), lambda: {"loss": "mse"}, {"class_weight": {0: 1.0, 1: 5.0}}),
    "AUC": (dense, (x, y), auc, {"sample_weight": weights}),
    "mask": (masked, (tokens, labels), lambda: {"loss": "mse"}),
    "mean functions": functions(mean_of_all),
    "sum functions": functions(sum_of_all),
    "root functions": functions(root),
    "functions of rows": functions(per_row),
    "functions of pairs": functions(of_pairs),
    "functions of neighbours": functions(of_neighbours),
    "means of pairs": functions(mean_of_pairs),
    "add a mean": adding(lambda value: 0.1 * tf.reduce_mean(value)),
    "add a constant": adding(lambda value: tf.constant(0.5)),
    "add a sum": adding(lambda value: 0.1 * tf.reduce_sum(value)),
    "add a norm": adding(lambda value: 0.1 * tf.nn.l2_loss(value)),
    "add a summed loss": adding(lambda value: mse("sum")(tf.zeros_like(value), value)),
    "add a sum of means": adding(lambda value: tf.reduce_sum(tf.reduce_mean(value, axis=0))),
    "add a mean of sums": adding(lambda value: tf.reduce_mean(tf.reduce_sum(value, axis=1))),
    "add a divided sum": adding(
        lambda value: tf.reduce_sum(value) / tf.cast(tf.shape(value)[0], tf.float32)
    ),
    "two outputs": (
        two_outputs,
        (x, {"a": y, "b": 2 * y}),
        lambda: {"loss": {"a": "mse", "b": sum_of_all}, "loss_weights": {"a": 2.0, "b": 0.3}},
    ),
    "own means": (own(OwnMean), (x, y), lambda: {"loss": "mse"}),
    "own logs": (own(OwnLog), (x, y), lambda: {"loss": mse("sum")}),
    "a part of the metrics": (own(PartOfMetrics), (x, y), lambda: {"loss": "mse"}),
    "unlisted metrics": (own(UnlistedMetrics), (x, y), lambda: {"loss": "mse"}),
    "sum": (dense, (x, y), lambda: {"loss": mse("sum")}),
    "sum with weights": (
        dense, (x, y), lambda: {"loss": mse("sum")}, {"sample_weight": weights}
    ),
    "masked sum": (masked, (tokens, labels), lambda: {"loss": mse("sum")}),
}
if keras.__name__ == "keras":
    weighted = lambda: {"loss": mse("mean_with_sample_weight")}
    cases |= {
        "own compute_metrics": (
            own(OwnMetrics), (x, y), lambda: {"loss": "mse", "metrics": ["binary_accuracy"]}
        ),
        "functions of losses": functions(of_losses),
        "add a loss": adding(lambda value: mse()(tf.zeros_like(value), value)),
        "add a loss of pairs": adding(lambda value: Pairs()(value[:, :1], value[:, 1:]) / 1000),
        "add half a loss": adding(lambda value: mse()(tf.zeros_like(value), value) / 2),
        "add a sum per row": adding(lambda value: 0.1 * tf.reduce_sum(value, axis=1)),
        "add several": adding([
            lambda value: mse()(tf.zeros_like(value), value), tf.reduce_mean, tf.reduce_sum
        ]),
        "weighted mean": (dense, (x, y), weighted, {"sample_weight": weights}),
        "masked weighted mean": (masked, (tokens, labels), weighted),
    }
else:
    cases["add_metric"] = (tracking, (x, y), lambda: {"loss": "mse"})

part, parts = map(int, sys.argv[2:])
differing = []
for name, (build, data, options, *given) in list(cases.items())[part::parts]:
    given = given[0] if given else {}
    expected = fit(one, build, data, options, **given)
    found = fit(mirrored, build, data, options, **given)
    if not np.allclose(expected, found, rtol=1e-4, atol=1e-6):
        differing.append([name, expected.tolist(), found.tolist()])

def mixed(value):
    return tf.reduce_sum(value) + tf.reduce_mean(value)


refusals = {
    "jit_compile": (dense, (x, y), lambda: {"loss": "mse", "jit_compile": True}),
    "a root": adding(lambda value: tf.sqrt(tf.reduce_mean(tf.square(value)))),
    "mixed": adding(mixed),
    "selected": adding(lambda value: tf.reduce_mean(value[value > 0])),
    "pairs": adding(lambda value: mean_of_pairs(value[:, :1], value[:, 1:])),
    "neighbours": adding(lambda value: tf.reduce_mean(tf.square(value - tf.roll(value, 1, 0)))),
    "statistics": adding(
        lambda value: tf.reduce_mean(tf.square(value - tf.reduce_mean(value, axis=0)))
    ),
    "weights": (dense, (x, y), lambda: {"loss": mean_of_all}, {"sample_weight": weights}),
}
if keras.__name__ == "tf_keras":
    refusals["a vector"] = adding(lambda value: tf.reduce_sum(value, axis=1))
refused = {}
for name, (build, data, options, *given) in list(refusals.items())[part::parts]:
    try:
        fit(mirrored, build, data, options, **(given[0] if given else {}))
    except SpecError as error:
        refused[name] = str(error)


class OfPairs(keras.Sequential):
    def train_step(self, data):
        first, second = tf.unstack(data)
        return {"loss": tf.reduce_mean(first - second)}


def fit_of_pairs(strategy):
    with strategy.scope():
        model = OfPairs([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd")
    sharding.expect_training_data()
    return model.fit(tf.data.Dataset.from_tensors(np.stack([x, x])), verbose=0).history["loss"]


class OfTriples(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = dense()

    def call(self, inputs):
        return self.inner(inputs[0]) - self.inner(inputs[1])

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = mse("sum")(data[2], self(data[:2]))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


def fit_of_triples(strategy):
    with strategy.scope():
        model = OfTriples()
        model.inner.build((None, 3))
        model.compile(keras.optimizers.SGD(0.01))
    sharding.expect_training_data()
    model.fit(batched(x, x[::-1].copy(), y), epochs=2, verbose=0)
    return model.get_weights()


notes = []
if part == 0:
    if keras.__name__ == "keras":
        keras_fit.install_keras_hooks()
        for expected, found in zip(fit_of_triples(one), fit_of_triples(mirrored), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert fit_of_pairs(one) == [0]
    try:
        fit_of_pairs(mirrored)
    except ValueError as error:
        notes = error.__notes__
print(json.dumps([differing, refused, list(refusals)[part::parts], notes]))
"""


REASONS = {
    "jit_compile": "jit_compile=True does not work with several replicas",
    "weights": "mean_of_all returns one number per batch",
    "": "a term of add_loss() of the layer adds",
}


# Each case compiles four graphs, which takes seconds.
@pytest.mark.process
@pytest.mark.parametrize(
    ("keras", "part", "parts"),
    [
        *[("keras", part, 6) for part in range(6)],
        *[pytest.param("tf_keras", part, 2, marks=pytest.mark.soak) for part in range(2)],
    ],
)
def test_two_devices_report_and_train_as_one(keras: str, part: int, parts: int) -> None:
    command = [sys.executable, "-c", PROGRAM, keras, str(part), str(parts)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    differing, refused, expected, notes = json.loads(done.stdout.splitlines()[-1])
    assert differing == []
    assert list(refused) == expected
    for name, text in refused.items():
        assert text.startswith(REASONS.get(name, REASONS[""])), name
    if part == 0:
        (note,) = notes
        assert note.startswith("Replicas divide the first axis of each batch")

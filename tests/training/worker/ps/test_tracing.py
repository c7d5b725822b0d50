"""Parts of a batch give the metrics of the whole batch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json
from concurrent import futures
import keras
import numpy as np
import tensorflow as tf
from timonel.errors import SpecError
from timonel.training.worker.private import losses
from timonel.training.worker.ps import tracing
from timonel.training.worker.ps.worker_messages import StepResults

told = []
losses.install_functions(keras, told.append)
strategy = tf.distribute.OneDeviceStrategy("CPU:0")
strategy.extended._being_scheduled = False  # as a ParameterServerStrategy has
run_here = strategy.run


def run(step, args):
    graph = tf.compat.v1.get_default_graph()

    def run_there():
        with graph.as_default(), strategy.scope():
            return run_here(step, args=args)

    with futures.ThreadPoolExecutor() as threads:
        return threads.submit(run_there).result()


strategy.run = run  # in another thread, as a ParameterServerStrategy does


class Model(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}

    @property
    def metrics(self):
        return [self.seen]


def total(true, predicted):
    return tf.reduce_sum(tf.square(true - predicted))


def root(true, predicted):
    return tf.sqrt(tf.reduce_mean(tf.square(true - predicted)))


def results(loss):
    with strategy.scope():
        model = Model([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.seen = keras.metrics.Mean(name="seen")
        model.compile("sgd", loss)
    x = tf.reshape(tf.range(9.0), [3, 3]) / 9
    y = 2 * x[:, :1]
    whole = float(model.compute_loss(y=y, y_pred=model(x)))
    tracing.build(model, strategy, (x, y), training=True)
    step = tracing.trace(model, strategy, (x, y), training=True, name="step", divides=True)
    vectors, shares = [], [1 / 3, 2 / 3]
    for part, rows in enumerate([slice(0, 1), slice(1, 3)]):
        draw = tf.constant([0, part], tf.int64)
        number, share = tf.constant(part, tf.int64), tf.constant(shares[part])
        vectors.append(step.function((x[rows], y[rows]), draw, number, share).numpy())
    received = StepResults(model, step)
    received.add(vectors, shares)
    return float(received.logs(vectors, shares)["seen"]), float(model.seen.count), whole


class Pair(keras.Model):
    pass  # no call(): its train_step trains two models


with strategy.scope():
    pair = Pair()
    pair.first = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    pair.compile("sgd")
tracing.build(pair, strategy, tf.ones((2, 3)), training=True)
assert pair.optimizer.built
found = [results("mse"), results(total), results(keras.losses.MeanSquaredError("sum"))]
assert told == []


class Words(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Embedding(9, 4, mask_zero=True)
        self.normal = keras.layers.BatchNormalization(name="normal")
        self.dense = keras.layers.Dense(3)

    def call(self, x, training=None):
        return self.dense(self.normal(self.layer(x), training=training))


def trace_words(loss):
    told.clear()
    with strategy.scope():
        words = Words()
        words.compile("sgd", loss)
    batch = tf.constant([[1, 0], [2, 3]]), tf.constant([[0, 1], [2, 0]])
    tracing.build(words, strategy, batch, training=True)
    tracing.trace(words, strategy, batch, training=True, name="words", divides=True)
    found.append(list(told))


classes = keras.losses.SparseCategoricalCrossentropy
trace_words(classes(from_logits=True, name="masked"))
trace_words(classes(from_logits=True, ignore_class=0, name="some"))
trace_words(classes(from_logits=True, reduction="sum", name="all"))
try:
    results(root)
except SpecError as error:
    found.append(str(error))


class Own(keras.metrics.Metric):
    def __init__(self, next):
        super().__init__(name=next.__name__)
        self.next = next
        self.state = self.add_weight(name="state", shape=(), initializer="zeros")

    def update_state(self, y, p, sample_weight=None):
        self.state.assign(self.next(self.state + 0.0, tf.reshape(p, [-1])))

    def result(self):
        return self.state


def adding(old, p):
    return old + tf.reduce_sum(p)


def largest(old, p):
    return tf.maximum(old, tf.reduce_max(p))


for function in (adding, largest):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Own(function)])
    batch = tf.ones((4, 3)), tf.ones((4, 1))
    tracing.build(model, strategy, batch, training=True)
    try:
        tracing.trace(model, strategy, batch, training=True, name=function.__name__)
        found.append(None)
    except SpecError as error:
        found.append(str(error))


class OfRows(Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            values = self(x, training=True)
            assert tape.gradient(values, x) is not None  # of each row, as for a penalty
            loss = tf.square(values - y)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {}


with strategy.scope():
    model = OfRows([keras.Input((3,)), keras.layers.Dense(1)])
    model.seen = keras.metrics.Mean(name="seen")
    model.compile("sgd")
batch = tf.ones((4, 3)), tf.ones((4, 1))
tracing.build(model, strategy, batch, training=True)
tracing.trace(model, strategy, batch, training=True, name="whole")
try:
    tracing.trace(model, strategy, batch, training=True, name="rows", divides=True)
except SpecError as error:
    found.append(str(error))
print(json.dumps(found))
"""


@pytest.mark.process
def test_parts_of_a_batch_count_as_the_batch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *counted, masked, some, total, refusal, adding, largest, of_rows = json.loads(
        done.stdout.splitlines()[-1]
    )
    for lines, names in ((masked, ["normal", "masked"]), (some, ["some"]), (total, [])):
        assert [line.partition(": averages over the part")[0] for line in lines] == names
    for seen, count, whole in counted:
        assert (seen, count) == (pytest.approx(whole), 1)
    assert refusal.startswith("root is neither a mean nor a sum over the rows")
    assert adding is None
    assert largest.startswith("the metric largest sets its variable")
    assert of_rows.startswith(
        "parts of a batch do not give the gradient of a loss with a value per"
    )

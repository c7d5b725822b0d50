"""Metrics whose variables are no sums over batches, on two logical devices."""

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
from timonel.training.worker.private import replica_steps

keras = importlib.import_module(sys.argv[1])
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
replica_steps.install(keras, print)
sharding.install(mirrored, 1)


class Own(keras.metrics.Metric):
    def __init__(self, **options):
        super().__init__(**options)
        self.state = self.add_weight(name="state", shape=(), initializer="zeros")
        self.count = self.add_weight(name="count", shape=(), initializer="zeros")

    def update_state(self, y, p, sample_weight=None):
        self.state.assign(self.next(self.state + 0.0, tf.reshape(tf.cast(p, tf.float32), [-1])))
        self.count.assign_add(tf.cast(tf.shape(p)[0], tf.float32))

    def result(self):
        return self.state / self.count


class Adds(Own):
    def next(self, old, p):
        return tf.reduce_sum(tf.square(p)) + old


class Largest(Own):
    def next(self, old, p):
        return tf.maximum(old, tf.reduce_max(p))


class Last(Own):
    def next(self, old, p):
        return p[0]


class Average(Own):
    def next(self, old, p):
        return 0.9 * old + 0.1 * tf.reduce_mean(p)


KINDS = {
    "adds": Adds,
    "auc": lambda: keras.metrics.AUC(),
    "f1": lambda: keras.metrics.F1Score(threshold=0.5),
    "largest": Largest,
    "last": Last,
    "average": Average,
}
x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
found = {}
for name, build in KINDS.items():
    with mirrored.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
        model.compile("sgd", "mse", metrics=[build()])
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    found[name] = []
    for call in (model.fit, model.evaluate):
        sharding.expect_training_data()
        try:
            call(rows, verbose=0)
            found[name].append(None)
        except SpecError as error:
            found[name].append(str(error))
print("found", json.dumps(found))
"""


@pytest.mark.process
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_they_are_refused(flavour: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, flavour], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    found = json.loads(lines[0].removeprefix("found "))
    for name in ("adds", "auc", "f1"):
        assert found.pop(name) == [None, None]
    for name, messages in found.items():
        assert len(messages) == 2
        for message in messages:
            assert f"the metric {name} sets its variable" in message

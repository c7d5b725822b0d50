"""Layers of the script that compute rows from other rows of the batch, on two logical devices."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import importlib, json, sys
import numpy as np
import tensorflow as tf
from timonel.training.worker.inputs import sharding
from timonel.training.worker.private import replica_steps

keras = importlib.import_module(sys.argv[1])
L = keras.layers
mean = keras.ops.mean if keras.__name__ == "keras" else tf.reduce_mean
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
told = []
replica_steps.install(keras, told.append)
sharding.install(mirrored, 1)


class Pairs(L.Layer):
    def call(self, x):
        return tf.concat([x, tf.matmul(tf.matmul(x, x, transpose_b=True), x)], 1)


class Centred(L.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, 0)


class Block(L.Layer):
    def __init__(self):
        super().__init__()
        whole = L.BatchNormalization(synchronized=True)
        self.parts = [L.LayerNormalization(), L.Dense(4), whole, L.Dropout(0.2)]

    def call(self, x, training=None):
        for part in self.parts:
            x = part(x)
        return x * tf.nn.softmax(x)


class Noise(L.Layer):
    def call(self, x):
        return x + tf.random.normal(tf.shape(x))


class Counts(L.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x):
        self.count.assign(self.count + 1.0)
        return tf.where(x > 0.5, x, 0.0)


class Moving(L.Layer):
    used = 1.0

    def build(self, shape):
        self.mean = self.add_weight(shape=(4,), initializer="zeros", trainable=False, name="mean")

    def call(self, x, training=None):
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x, 0))
        return x - self.mean * self.used if self.used else x + 0.0


class Unused(Moving):
    used = 0.0


class Positions(L.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(8, 4), initializer="ones", name="table")

    def call(self, x):
        return self.table + 0.0


class Embeds(L.Layer):
    def __init__(self):
        super().__init__()
        self.positions = Positions()

    def call(self, x):
        return x + tf.reduce_sum(self.positions(x), 0)


class Own(keras.Model):
    def __init__(self, *layers):
        super().__init__()
        self.all = layers

    def call(self, x):
        for layer in self.all:
            x = layer(x)
        return x


def functional(function):
    given = keras.Input((4,))
    return keras.Model(given, L.Dense(1)(function(L.Dense(4)(given))))


def sequential(*layers):
    return keras.Sequential([keras.Input((4,)), *layers, L.Dense(1)])


KINDS = {
    "pairs": lambda: sequential(Pairs()),
    "centred": lambda: Own(L.Dense(4), Centred(), L.Dense(1)),
    "reversed": lambda: sequential(L.Lambda(lambda x: x + x[::-1])),
    "operation": lambda: functional(lambda x: x - mean(x, 0, keepdims=True)),
    "block": lambda: sequential(Block()),
    "noise": lambda: sequential(Noise()),
    "counts": lambda: sequential(Counts()),
    "moving": lambda: sequential(Moving()),
    "unused": lambda: sequential(Unused()),
    "inner": lambda: sequential(keras.Sequential([Moving()])),
    "embeds": lambda: sequential(Embeds()),
    "frozen": lambda: sequential(L.BatchNormalization(trainable=False)),
    "normal": lambda: sequential(L.BatchNormalization()),
    "added": lambda: functional(lambda x: x + 2 * x),
}
x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
found = {}
for name, build in KINDS.items():
    with mirrored.scope():
        model = build()
        model.compile("sgd", "mse")
    sharding.expect_training_data()
    before = len(told)
    model.fit(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8), epochs=2, verbose=0)
    found[name] = told[before:]
print("found", json.dumps(found))
"""


@pytest.mark.process
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_it_is_told_of_layers_of_the_script(flavour: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, flavour], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    found = json.loads(lines[0].removeprefix("found "))
    mixing = {name: lines for name, lines in found.items() if lines}
    (of_normal,) = mixing.pop("normal")
    assert "BatchNormalization computes mean and variance from the rows of each" in of_normal
    assert set(mixing) == {"pairs", "centred", "reversed", "operation", "moving", "inner"}
    for name, lines in mixing.items():
        assert len(lines) == 1, (name, lines)
        assert "computes rows from other rows of the batch" in lines[0]
    assert "the layer pairs" in found["pairs"][0]
    assert "the layer centred" in found["centred"][0]

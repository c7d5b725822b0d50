from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json
import keras
import numpy as np
import tensorflow as tf
from timonel.training.worker.private import replica_steps

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
told = []
replica_steps.install(keras, told.append)


class Model(keras.Sequential):
    keras_part = own_part = 0.0

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.keras_part * self.compute_loss(x, y, predicted)
            if self.own_part:
                loss += self.own_part * tf.reduce_mean(tf.square(predicted - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class Inner(Model):
    def __init__(self, layers):
        super().__init__(layers)
        self.seen = keras.metrics.Mean(name="seen")

    def train_step(self, data):
        self.seen.update_state(super().train_step(data)["loss"])
        return {"seen now": tf.function(self.seen.result)()}


class Adds(keras.layers.Layer):
    # A term that may not be a mean, and one that is.


    def __init__(self):
        super().__init__()
        self.normal = keras.layers.BatchNormalization()

    def call(self, x):
        self.add_loss(tf.reduce_mean(tf.square(self.normal(x, training=True))))
        self.add_loss(tf.reduce_mean(tf.random.shuffle(x) * x))
        return x


class Adding(Model):
    def __init__(self, layers):
        super().__init__([*layers, Adds()])


class Root(Model):
    def __init__(self, layers):
        super().__init__(layers)
        self.seen = keras.metrics.Mean(name="seen")

    def train_step(self, data):
        self.seen.update_state(tf.sqrt(tf.reduce_mean(tf.square(self(data[0])))))
        return super().train_step(data)


def fit(kind, steps=1, **parts):
    with strategy.scope():
        model = kind([keras.Input((2,)), keras.layers.Dense(1, kernel_regularizer="l2")])
        model.compile("sgd", "mse", steps_per_execution=steps)
    vars(model).update(parts)
    told.clear()
    model.fit(np.ones((16, 2)), np.ones((16, 1)), batch_size=4, epochs=2, verbose=0)
    return list(told)


print(json.dumps({
    "keras": fit(Model, keras_part=1.0),
    "mixed": fit(Model, keras_part=0.0, own_part=1.0),
    "inner": fit(Inner, keras_part=1.0),
    "adding": fit(Adding, keras_part=1.0),
    "root": fit(Root, keras_part=1.0),
    "steps": fit(keras.Sequential, steps=3),
}))
"""


@pytest.mark.process
def test_what_replicas_compute_otherwise_is_told_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["keras"] == []
    (mixed,) = told["mixed"]
    assert "counts 2 times" in mixed
    (inner,) = told["inner"]
    assert inner.startswith("The step reads the result of the metric seen inside a tf.function")
    normal, adding = told["adding"]
    assert normal.startswith("BatchNormalization computes mean and variance from the rows of each")
    assert adding.startswith("a term of add_loss() of the layer adds: values of rows may depend")
    (root,) = told["root"]
    assert root.startswith("The metric seen gets a number that is neither a mean nor a sum")
    (steps,) = told["steps"]
    assert steps.startswith("steps_per_execution=3 does not work with several replicas")

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
from timonel.training.worker.private import replica_steps

keras = importlib.import_module(sys.argv[1])
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
one = tf.distribute.get_strategy()
replica_steps.install(keras, print)

ROWS = 11  # batches of 4, 4 and 3: the last one has two rows on one replica, one on the other
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


def fit(strategy, build, data, options, **given):
    with strategy.scope():
        model = build()
        model.compile(keras.optimizers.SGD(0.1), **options())
    history = model.fit(*data, batch_size=4, epochs=2, shuffle=False, verbose=0, **given).history
    given.pop("class_weight", None)
    found = model.evaluate(*data, batch_size=4, verbose=0, return_dict=True, **given)
    values = [*history.values(), *found.values(), *model.get_weights()]
    return np.concatenate([np.ravel(value) for value in values])


def auc():
    metrics = [keras.metrics.AUC()]
    return {"loss": "binary_crossentropy", "metrics": metrics}


cases = {
    "regularizers": (
        lambda: dense(kernel_regularizer="l2", activity_regularizer="l2"),
        (x, y),
        lambda: {"loss": "mse"},
    ),
    "class weights": (dense, (x, y), lambda: {"loss": "mse"}, {"class_weight": {0: 1.0, 1: 5.0}}),
    "AUC": (dense, (x, y), auc, {"sample_weight": weights}),
    "mask": (masked, (tokens, labels), lambda: {"loss": "mse"}),
    "scalar function": (dense, (x, y), lambda: {"loss": mean_of_all}),
}
if keras.__name__ == "keras":
    summed = lambda: {"loss": mse("sum")}
    weighted = lambda: {"loss": mse("mean_with_sample_weight")}
    cases |= {
        "sum": (dense, (x, y), summed),
        "sum with weights": (dense, (x, y), summed, {"sample_weight": weights}),
        "masked sum": (masked, (tokens, labels), summed),
        "weighted mean": (dense, (x, y), weighted, {"sample_weight": weights}),
        "masked weighted mean": (masked, (tokens, labels), weighted),
    }
else:
    even = (x[:8], y[:8])
    cases["sum"] = (dense, even, lambda: {"loss": mse("sum")})

differing = []
for name, (build, data, options, *given) in cases.items():
    given = given[0] if given else {}
    expected = fit(one, build, data, options, **given)
    found = fit(mirrored, build, data, options, **given)
    if not np.allclose(expected, found, rtol=1e-4, atol=1e-6):
        differing.append(name)
print(json.dumps(differing))
"""


@pytest.mark.process
@pytest.mark.parametrize("keras", ["keras", pytest.param("tf_keras", marks=pytest.mark.soak)])
def test_two_devices_report_and_train_as_one(keras: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, keras], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []

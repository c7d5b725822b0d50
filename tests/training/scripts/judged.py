"""Two fits with validation, slowed down, which print what ``fit`` and ``evaluate`` return."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time

import numpy as np

keras = importlib.import_module(
    "tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else "keras"
)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--pause", type=float, default=0.3)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()

random = np.random.default_rng(0)
x = random.normal(size=(96, 4)).astype("float32")
y = (x @ [1.0, -2.0, 0.5, 0.0])[:, None].astype("float32")
held_out = (x[64:], y[64:])


def rate(epoch: int, lr: float) -> float:
    time.sleep(args.pause)
    return lr


model = keras.Sequential(
    [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
)
model.compile(optimizer=keras.optimizers.SGD(args.lr), loss="mse", metrics=["mae"])
slowly = [keras.callbacks.LearningRateScheduler(rate)]
histories = [
    model.fit(
        x[:64],
        y[:64],
        batch_size=16,
        epochs=args.epochs,
        validation_data=held_out,
        callbacks=slowly,
    ).history,
    model.fit(x, y, batch_size=16, epochs=2, validation_split=0.25).history,
    model.fit(x[:64], y[:64], batch_size=16, epochs=1).history,
]
evaluated = model.evaluate(*held_out, return_dict=True, verbose=0)
plain = [{name: [float(v) for v in values] for name, values in h.items()} for h in histories]
print("RESULT", json.dumps({"histories": plain, "evaluated": evaluated}), flush=True)

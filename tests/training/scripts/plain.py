"""A user's script: plain Keras, two fits, no word of distribution but in what it writes down."""

import argparse
import json
import sys
from pathlib import Path

import keras
import numpy as np

import timonel.data
from timonel.training import context

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.01)
options = parser.parse_args()

train = timonel.data.load(batch_size=16)
validation = timonel.data.load(split="validation", batch_size=16)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(8, "relu"),
        keras.layers.Dense(2, "softmax"),
    ]
)
model.compile(
    keras.optimizers.SGD(options.lr), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
first = model.fit(train, validation_data=validation, epochs=options.epochs)

# 33 rows in batches of 16: the last batch has one row, less than there are replicas.
x = np.random.default_rng(1).random((33, 8, 8, 1), np.float32)
y = (x.mean((1, 2, 3)) > 0.5).astype("int64")
second = model.fit(x, y, batch_size=16, epochs=1, shuffle=False)

job = context()
result = {
    "argv": sys.argv[1:],
    "cwd": str(Path.cwd()),
    "path": sys.path[0],
    "params": dict(job.params),
    "histories": [first.history, second.history],
    "evaluated": model.evaluate(validation, verbose=0),
    "evaluated_arrays": model.evaluate(x, y, batch_size=16, verbose=0),
    "predicted": model.predict(x, batch_size=16, verbose=0).tolist(),
    "called": np.asarray(model(x)).tolist(),
    "weights": [weight.tolist() for weight in model.get_weights()],
}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(result))

"""Convolution and BatchNormalization, which are the ones that mind replicas without rows."""

import json

import keras
import numpy as np

from timonel.training import context

x = np.random.default_rng(1).random((33, 8, 8, 1), np.float32)
y = (x.mean((1, 2, 3)) > 0.5).astype("int64")
model = keras.Sequential(
    [
        keras.layers.InputLayer((8, 8, 1)),
        keras.layers.Conv2D(2, 3),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(2, "softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x[:32], y[:32]))
job = context()
result = {
    "keras": keras.__name__,
    "history": history.history,
    "predicted": model.predict(x[:32], batch_size=16, verbose=0).tolist(),
    "called": np.asarray(model(x[:32], training=False)).tolist(),
    "weights": [weight.tolist() for weight in model.get_weights()],
}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(result))

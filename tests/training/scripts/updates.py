"""A few slow steps with a learning rate that warms up and gradients that are accumulated."""

import json
import time

import keras
import numpy as np

from timonel.training import context

x = np.random.default_rng(0).normal(size=(128, 8)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2, "softmax")]
)
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.15)


model.fit(x, y, batch_size=16, epochs=4, callbacks=[Slow()])
job = context()
found = {
    "weights": [weight.tolist() for weight in model.get_weights()],
    "updates": int(model.optimizer.iterations.numpy()),
}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(found))

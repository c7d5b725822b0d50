"""A fit that lasts until somebody disturbs it; where it is can be seen from outside."""

import json
import time

import keras

import timonel.data
from timonel.training import context

job = context()


class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.1)


train = timonel.data.load(batch_size=16)
model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(train, epochs=4, callbacks=[Slow()])
result = {"epochs": history.epoch, "loss": history.history["loss"]}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(result))

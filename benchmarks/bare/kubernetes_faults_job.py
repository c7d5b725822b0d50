"""For a TFJob: MultiWorkerMirroredStrategy, ``model.fit`` of tf-keras, BackupAndRestore.

``model.fit`` of Keras 3 fails under that strategy. Worker 0 appends ``STEP <number> <unix
seconds>`` to the file steps.txt of the folder BACKUP, which all pods share.
"""

import os
import sys
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tf_keras as keras

epochs, steps, save_steps, step_s = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), 0.05
backup = Path(os.environ["BACKUP"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
is_first = strategy.cluster_resolver.task_id == 0


class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002
        time.sleep(step_s)
        if is_first:
            number = int(self.model.optimizer.iterations.numpy())
            with (backup / "steps.txt").open("a") as file:
                file.write(f"STEP {number} {time.time()}\n")


random = np.random.default_rng(0)
x = random.random((16 * steps, 4), np.float32)
y = (x.sum(1) > 2).astype("int64")
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
saves = keras.callbacks.BackupAndRestore(str(backup / "checkpoints"), save_freq=save_steps)
model.fit(x, y, batch_size=16, epochs=epochs, callbacks=[saves, Steps()], verbose=0)

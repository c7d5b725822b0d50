"""By hand: one task of a MultiWorkerMirrored job that goes on where it was killed.

tf-keras and its BackupAndRestore, which saves at every so many steps; Keras 3 would need hooks for
the strategy, and repeats an epoch on weights that have moved on.

usage: backup_and_restore.py DIGITS_NPZ UNITS BATCH EPOCHS STEPS_PER_EPOCH BACKUP SAVE_STEPS LOG
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["TF_USE_LEGACY_KERAS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import numpy as np
import steps
import tensorflow as tf
from tensorflow import keras

path, sizes, batch, epochs, steps_per_epoch, backup, save_steps, log = sys.argv[1:9]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with np.load(path) as file:
    x, y = file["x"], file["y"]
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(int(batch), drop_remainder=True).repeat()
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA

with strategy.scope():
    units = [int(number) for number in sizes.split(",")]
    layers = [keras.layers.Dense(size, "relu") for size in units]
    last = keras.layers.Dense(10, "softmax")
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers, last])
    model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy")
wanted = SimpleNamespace(turns=None, step_log=log)
model.fit(
    data.with_options(options),
    epochs=int(epochs),
    steps_per_epoch=int(steps_per_epoch),
    callbacks=[
        keras.callbacks.BackupAndRestore(backup, save_freq=int(save_steps)),
        *steps.callbacks(keras, wanted, model),
    ],
    verbose=0,
)

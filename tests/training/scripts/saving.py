"""A user's script that saves in every way, at paths of its own, and loads some of it again."""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from timonel.training import context

folder = Path(sys.argv[1])
x = np.random.default_rng(0).random((64, 64), np.float32)
y = (x.sum(1) > 32).astype("float32")
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(512, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(512, "relu"),
        keras.layers.Dense(1, "sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(
    x,
    y,
    batch_size=16,
    epochs=4,
    callbacks=[
        keras.callbacks.ModelCheckpoint(str(folder / "epoch-{epoch}.keras")),
        keras.callbacks.ModelCheckpoint(
            str(folder / "best.weights.h5"),
            monitor="loss",
            save_best_only=True,
            save_weights_only=True,
        ),
        keras.callbacks.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
    ],
)
for number in range(5):
    model.save(folder / f"again-{number}.keras")
model.save(folder / "model.keras")
loaded = keras.models.load_model(folder / "model.keras")
model.save_weights(folder / "last.weights.h5")
model.export(folder / "exported", verbose=False)
tf.saved_model.save(model, str(folder / "saved"))
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), folder / "ckpt", 2)
latest = [manager.save() for _ in range(3)][-1]

job = context()
found = {
    "latest": latest,
    "same": all(map(np.array_equal, model.get_weights(), loaded.get_weights())),
    "kernel": model.get_weights()[0].tolist(),
}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(found))

"""Plain Keras, and what of the job's numerics it can see."""

import json

import keras

import timonel.data
from timonel.training import context

train = timonel.data.load(batch_size=8)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(2, "softmax", dtype="float32"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=100)
model.fit(train, epochs=3, callbacks=[plateau])
job = context()
found = {
    "policy": model.layers[0].dtype_policy.name,
    "optimizer": type(model.optimizer).__name__,
    "updates": int(model.optimizer.iterations.numpy()),
    "own_rate": float(model.optimizer.learning_rate.numpy()),
    "weights": [weight.tolist() for weight in model.get_weights()],
}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(found))

"""By hand: one pod of an Indexed Job; MultiWorkerMirroredStrategy, the tutorial's custom loop.

``model.fit`` of Keras 3 fails under that strategy. Prints ``MARK <name> <unix seconds>`` at its
first line and after its first step. Needs TF_CONFIG, which a TFJob sets; or the variables JOB_NAME
and WORKERS, JOB_COMPLETION_INDEX, which the Job sets, and a headless Service with the Job's name.
"""

import json
import os
import time

print("MARK line-0", time.time(), flush=True)

if "TF_CONFIG" not in os.environ:
    job = os.environ["JOB_NAME"]
    workers = [f"{job}-{i}.{job}:2222" for i in range(int(os.environ["WORKERS"]))]
    task = {"type": "worker", "index": int(os.environ["JOB_COMPLETION_INDEX"])}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.default_rng(0).random((64, 4), np.float32)
y = (x.sum(1) > 2).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
distributed = strategy.experimental_distribute_dataset(dataset)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)


def step(inputs):
    x, y = inputs
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=16)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


@tf.function
def train_step(inputs):
    strategy.run(step, args=(inputs,))


for number, inputs in enumerate(distributed):
    train_step(inputs)
    if number == 0:
        print("MARK first-step", time.time(), flush=True)

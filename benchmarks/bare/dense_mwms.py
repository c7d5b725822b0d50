"""By hand: one task of a MultiWorkerMirrored job that trains a dense network in float32.

Keras 3, a custom loop. Does what ``scripts/digits.py`` does, from the same weights, on the same
batches.

usage: dense_mwms.py DIGITS_NPZ UNITS ACTIVATION BATCH LEARNING_RATE TURNS_JSON WEIGHTS_NPZ
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import keras
import numpy as np
import steps
import tensorflow as tf

path, sizes, activation, batch, learning_rate, turns, weights = sys.argv[1:8]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with np.load(path) as file:
    x, y = file["x"], file["y"]
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(int(batch), drop_remainder=True).repeat()
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
distributed = iter(strategy.experimental_distribute_dataset(data.with_options(options)))


def dense(number, units, activation):
    start = keras.initializers.GlorotUniform(seed=number)
    return keras.layers.Dense(units, activation, kernel_initializer=start)


with strategy.scope():
    units = [int(number) for number in sizes.split(",")]
    layers = [dense(number, size, activation) for number, size in enumerate(units)]
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers, dense(len(units), 10, "softmax")])
    optimizer = keras.optimizers.SGD(float(learning_rate))
    optimizer.build(model.trainable_variables)
    mean_loss = keras.metrics.Mean()


def step(inputs):
    features, labels = inputs
    with tf.GradientTape() as tape:
        per_example = keras.losses.sparse_categorical_crossentropy(
            labels, model(features, training=True)
        )
        loss = tf.nn.compute_average_loss(per_example, global_batch_size=int(batch))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    mean_loss.update_state(per_example)


@tf.function
def train_step(iterator):
    strategy.run(step, args=(next(iterator),))


turn = steps.Turns(**json.loads(turns))
for _ in range(turn.total):
    turn.step_begins()
    train_step(distributed)
turn.all_done()
if steps.leads():
    np.savez(weights, *model.get_weights())

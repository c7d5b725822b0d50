"""A user's script on two workers, one of which gets its data later than the other."""

import time

import keras
import tensorflow as tf

from timonel.training import context

is_slow = context().cluster.task_id == "worker-0"


def late(step):
    if is_slow:
        time.sleep(0.2)
    return step


def rows(step):
    tf.numpy_function(late, [step], tf.int64)
    return tf.random.stateless_uniform((16, 8), (step, 0)), tf.zeros((16, 1))


data = tf.data.Dataset.range(30).map(rows)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, name="narrow")])
model.add(keras.layers.Dense(1))
model.compile("sgd", "mse")
model.fit(data, epochs=1)

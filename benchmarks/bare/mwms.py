"""By hand: one task of a two-process MultiWorkerMirrored job; Keras 3, the tutorial's custom loop.

Prints ``MARK <name> <unix seconds>`` when the strategy stands and ``EPOCH <seconds>`` after each
epoch. Where TF_CONFIG is not set the same loop runs in one process.

usage: mwms.py TRAIN_TFRECORD RECORDS SIZE CHANNELS CLASSES BATCH EPOCHS
"""

import os
import sys
import time

import keras
import tensorflow as tf

path, records, size, channels, classes, batch, epochs = sys.argv[1], *map(int, sys.argv[2:8])
if "TF_CONFIG" in os.environ:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    strategy = tf.distribute.get_strategy()
print("MARK ready", time.time(), flush=True)


def parse(record):
    features = tf.io.parse_single_example(
        record,
        {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    image = tf.io.decode_image(features["image"], channels=channels, expand_animations=False)
    image = tf.image.resize(tf.ensure_shape(image, [None, None, channels]), [size, size])
    return image / 255.0, features["label"]


def make_dataset(context):
    dataset = tf.data.TFRecordDataset(path).shuffle(records, seed=0)
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(context.get_per_replica_batch_size(batch), drop_remainder=True)
    return dataset.prefetch(tf.data.AUTOTUNE)


with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((size, size, channels)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(classes, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    mean_loss = keras.metrics.Mean()


def step(inputs):
    x, y = inputs
    with tf.GradientTape() as tape:
        predictions = model(x, training=True)
        per_example = keras.losses.sparse_categorical_crossentropy(y, predictions)
        loss = tf.nn.compute_average_loss(per_example, global_batch_size=batch)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    accuracy.update_state(y, predictions)
    mean_loss.update_state(per_example)


@tf.function
def train_step(iterator):
    strategy.run(step, args=(next(iterator),))


steps = records // batch
distributed = strategy.distribute_datasets_from_function(make_dataset)
for _ in range(epochs):
    begin = time.time()
    accuracy.reset_state()
    mean_loss.reset_state()
    iterator = iter(distributed)
    for _ in range(steps):
        train_step(iterator)
    result = float(mean_loss.result()), float(accuracy.result())
    print("EPOCH", time.time() - begin, *result, flush=True)

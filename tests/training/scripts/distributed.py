"""A script that is written for several workers: its own strategy, loop and temporary folders."""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from timonel.training import context

folder = Path(sys.argv[1])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
is_chief = resolver.task_type == "chief"
x = np.random.default_rng(0).random((64, 8), np.float32)
y = (x.sum(1) > 4).astype(np.int64)


def dataset_of(pipeline):
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.shard(pipeline.num_input_pipelines, pipeline.input_pipeline_id)
    return data.batch(pipeline.get_per_replica_batch_size(16))


with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(2)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = strategy.distribute_datasets_from_function(dataset_of)
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
losses = list(model.fit(x, y, batch_size=16, epochs=1).history["loss"])


@tf.function
def train(iterator):
    def step(inputs):
        with tf.GradientTape() as tape:
            each = cross_entropy(inputs[1], model(inputs[0], training=True))
            loss = tf.nn.compute_average_loss(each)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(step, args=(next(iterator),)), axis=None)


batches = iter(data)
losses += [float(train(batches)) for _ in range(4)]
written = folder if is_chief else folder / f"workertemp_{resolver.task_id}"
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), written / "ckpt", 1)
manager.save()
written.mkdir(exist_ok=True)
model.save(written / "model.keras")
if not is_chief:
    tf.io.gfile.rmtree(str(written))

job = context()
found = {"losses": losses, "weights": [each.tolist() for each in model.get_weights()]}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(found))

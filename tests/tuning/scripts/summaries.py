"""A trial that reports nothing to timonel: it writes summaries to a folder of all trials."""

import argparse
import json
import os
import pathlib
import time

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--way", default="tf2")
parser.add_argument("--job-dir")
args = parser.parse_args()


def values():
    for epoch in range(args.epochs):
        yield epoch, args.x + epoch


def with_tf2(folder):
    tf.summary.create_file_writer(folder).set_as_default()
    for epoch, value in values():
        tf.summary.scalar("training/hptuning/metric", value, step=epoch)


def with_tf1(folder):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        value = tf.compat.v1.placeholder(tf.float32, ())
        summary = tf.compat.v1.summary.scalar("training/hptuning/metric", value)
        writer = tf.compat.v1.summary.FileWriter(folder)
        for epoch, number in values():
            writer.add_summary(session.run(summary, {value: number}), epoch)


def with_hypertune():
    """Write the file as cloudml-hypertune does."""
    path = pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"])
    path.parent.mkdir(parents=True)
    lines = []
    for epoch, value in values():
        entry = {"timestamp": time.time(), "trial": "0", "global_step": str(epoch)}
        tag = os.environ["CLOUD_ML_HP_METRIC_TAG"]
        lines.append(json.dumps({**entry, tag: str(value), "checkpoint_path": ""}) + "\n")
        path.write_text("".join(lines))


def with_keras():
    """Fit a model; training and validation have the same tags."""
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(args.x / 100), "mse")
    x = tf.reshape(tf.range(8.0), (8, 1))
    callback = tf.keras.callbacks.TensorBoard("logs")
    validation = (x, x + 100)
    model.fit(x, x, 8, args.epochs, callbacks=[callback], validation_data=validation, verbose=0)


if args.way == "tf2":
    with_tf2("logs")
elif args.way == "tf1":
    with_tf1("logs")
elif args.way == "job-dir":
    with_tf2(args.job_dir + "/mine/logs")
elif args.way == "keras":
    with_keras()
else:
    with_hypertune()

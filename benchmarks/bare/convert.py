"""By hand: a folder of label folders into one TFRecord file per split, with TensorFlow's writer.

usage: convert.py SOURCE DESTINATION
"""

import random
import sys
from pathlib import Path

import tensorflow as tf

source, destination = Path(sys.argv[1]), Path(sys.argv[2])
destination.mkdir(parents=True)
labels = sorted(folder.name for folder in source.iterdir() if folder.is_dir())
files = [(path, i) for i, name in enumerate(labels) for path in sorted((source / name).iterdir())]
random.Random(0).shuffle(files)
cuts = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
for split, (low, high) in cuts.items():
    part = files[int(low * len(files)) : int(high * len(files))]
    with tf.io.TFRecordWriter(str(destination / f"{split}.tfrecord")) as writer:
        for path, label in part:
            content = path.read_bytes()
            tf.io.decode_image(content)  # what a careful loop does: unreadable files stop it here
            feature = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())

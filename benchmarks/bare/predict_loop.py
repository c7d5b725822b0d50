"""By hand: predict a folder of photographs with model.predict over a tf.data pipeline.

usage: predict_loop.py MODEL SOURCE OUT
"""

import sys
from pathlib import Path

import keras
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

SIZE = 160


def load(path):
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, (SIZE, SIZE)) / 127.5 - 1


model = keras.saving.load_model(sys.argv[1])
files = sorted(map(str, Path(sys.argv[2]).rglob("*.jpg")))
images = tf.data.Dataset.from_tensor_slices(files).map(load, tf.data.AUTOTUNE)
scores = model.predict(images.batch(32).prefetch(tf.data.AUTOTUNE), verbose=0)
pq.write_table(pa.table({"key": files, "scores": list(scores)}), sys.argv[3])

"""Save MobileNetV2 as a Keras file, and with decoding as a SavedModel; sample files beside.

usage: predict_model.py SOURCE FOLDER
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

SIZE = 160


def main():
    source, folder = map(Path, sys.argv[1:])
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2(input_shape=(SIZE, SIZE, 3), weights=None, classes=10)
    model.save(folder / "model.keras")

    def pixels(content):
        image = tf.io.decode_image(content, channels=3, expand_animations=False)
        return tf.image.resize(image, (SIZE, SIZE)) / 127.5 - 1

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")])
    def serve(image_bytes):
        batch = tf.map_fn(pixels, image_bytes, fn_output_signature=tf.float32)
        return {"scores": model(tf.ensure_shape(batch, [None, SIZE, SIZE, 3]), training=False)}

    module = tf.Module()
    module.kept = [variable.value for variable in model.variables]
    module.serve = serve
    signatures = {"serving_default": serve}
    tf.saved_model.save(module, str(folder / "saved_model"), signatures=signatures)
    files = sorted(source.rglob("*.jpg"))[:16]
    np.savez(folder / "samples.npz", image_bytes=np.array([f.read_bytes() for f in files]))


main()

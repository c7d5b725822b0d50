"""Make the models that the benchmark of serving serves: SavedModels, LiteRT files, and examples.

usage: serving_models.py FOLDER
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
import tensorflow as tf
from PIL import Image, ImageFilter

_SEED = 4
_SIDE = 224
_CLASSES = 10


def main(folder: Path) -> None:
    """Write ``<model>/1/``, with a LiteRT file, and ``<case>.npz`` with ``x`` and ``y``."""
    random = np.random.default_rng(_SEED)
    image = random.random((_SIDE, _SIDE, 3), np.float32)
    keras.utils.set_random_seed(_SEED)
    small = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(_CLASSES, activation="softmax"),
        ]
    )
    mobile = keras.applications.MobileNetV2(weights=None)
    resnet = keras.applications.ResNet50(weights=None)
    for name, model in (("small", small), ("mobile", mobile), ("resnet", resnet)):
        save(folder, name, model, floats(model))
        convert(folder, name)
    save(folder, "jpeg", mobile, pictures(mobile))
    digits = random.random((64, 28, 28), np.float32)
    example(folder, "S", "small", digits[:1])
    example(folder, "B", "small", digits)
    example(folder, "M", "mobile", image[None])
    example(folder, "R", "resnet", image[None])
    example(folder, "J", "jpeg", np.array([photograph(random)], object))


def floats(model: Any) -> Any:
    """Return the model as a function from float32 [N, ...] to float32 [N, classes]."""
    spec = tf.TensorSpec([None, *model.input_shape[1:]], tf.float32, name="x")
    return tf.function(lambda x: {"y": model(x, training=False)}, input_signature=[spec])


def pictures(model: Any) -> Any:
    """Return the model as a function from JPEG bytes [N] of any size."""

    def decoded(content: Any) -> Any:
        image = tf.io.decode_jpeg(content, channels=3)
        return tf.image.resize(tf.cast(image, tf.float32), (_SIDE, _SIDE)) / 127.5 - 1

    def call(x: Any) -> Any:
        images = tf.map_fn(decoded, x, fn_output_signature=tf.float32)
        return {"y": model(tf.ensure_shape(images, (None, _SIDE, _SIDE, 3)), training=False)}

    return tf.function(call, input_signature=[tf.TensorSpec([None], tf.string, name="x")])


def save(folder: Path, name: str, model: Any, function: Any) -> None:
    """Export ``function`` as the only signature of a SavedModel."""
    module = tf.Module()
    # TensorFlow's variables, not Keras' around them: the converter leaves out what it cannot see.
    module.parameters = [variable.value for variable in model.variables]
    version = folder / name / "1"
    tf.saved_model.save(module, str(version), signatures={"serving_default": function})


def convert(folder: Path, name: str) -> None:
    """Put a LiteRT file of the SavedModel beside it, where servers look for one."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / name / "1"))
    (folder / name / "1" / "model.tflite").write_bytes(converter.convert())


def example(folder: Path, case: str, model: str, x: np.ndarray) -> None:
    """Write a request and what the model answers."""
    loaded = tf.saved_model.load(str(folder / model / "1"))
    y = loaded.signatures["serving_default"](x=tf.constant(list(x)))["y"].numpy()
    np.savez(folder / f"{case}.npz", x=x, y=y)


def photograph(random: np.random.Generator) -> bytes:
    """Return a JPEG of 640x480 with as much detail as a photograph: some 60 KB."""
    coarse = Image.fromarray(random.integers(0, 256, (30, 40, 3), np.uint8))
    fine = Image.fromarray(random.integers(0, 256, (480, 640, 3), np.uint8))
    smooth = coarse.resize((640, 480), Image.Resampling.BICUBIC)
    detail = fine.filter(ImageFilter.GaussianBlur(1.5))
    written = io.BytesIO()
    Image.blend(smooth, detail, 0.3).save(written, "JPEG", quality=90)
    return written.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

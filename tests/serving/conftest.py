"""Tiny SavedModels, made once: TensorFlow takes seconds to import and half a second to save."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

PUBLISHED = Path("assets.extra", "timonel.json")


@pytest.fixture(scope="session")
def exports(tmp_path_factory):
    """A folder of SavedModels: doubler, images, table, shapes, dense."""
    folder = tmp_path_factory.mktemp("exports")
    import tensorflow as tf

    for name, make in {
        "doubler": _doubler,
        "images": _images,
        "table": _table,
        "shapes": _shapes,
        "dense": _dense,
    }.items():
        module, signatures = make(tf)
        tf.saved_model.save(module, str(folder / name), signatures=signatures)
    for number in range(1, 4):
        module, signatures = _versioned(tf, number)
        tf.saved_model.save(module, str(folder / f"versioned-{number}"), signatures=signatures)
    return folder


@pytest.fixture
def png():
    """The bytes of a small image, white or black."""

    def make(white=True):
        from PIL import Image

        buffer = io.BytesIO()
        Image.new("L", (4, 3), 255 if white else 0).save(buffer, "PNG")
        return buffer.getvalue()

    return make


def publish(export: Path, base: Path, number: int, labels=()) -> Path:
    """Make a version of an export appear by a rename, as timonel publishes it."""
    aside = base / f".tmp-{number}"
    shutil.copytree(export, aside)
    (aside / PUBLISHED).parent.mkdir(exist_ok=True)
    (aside / PUBLISHED).write_text("{}")
    if labels:
        (aside / "assets" / "labels.txt").write_text("\n".join(labels) + "\n")
    aside.rename(base / str(number))
    return base / str(number)


def _signature(tf, module, function, **inputs):
    specs = [tf.TensorSpec(shape, dtype, name=name) for name, (shape, dtype) in inputs.items()]
    module.function = tf.function(function, input_signature=specs)
    return module, {"serving_default": module.function}


def _doubler(tf):
    def run(x):
        return {"doubled": 2 * x, "text": tf.strings.as_string(x[:, 0])}

    return _signature(tf, tf.Module(), run, x=([None, 2], tf.float32))


def _images(tf):
    """White images are dogs."""

    def brightness(content):
        return tf.reduce_mean(tf.cast(tf.io.decode_image(content, channels=1), tf.float32)) / 255

    def run(image_bytes):
        light = tf.map_fn(brightness, image_bytes, fn_output_signature=tf.float32)
        scores = tf.stack([1 - light, light], axis=1)
        label = tf.gather(tf.constant(["cat", "dog"]), tf.argmax(scores, axis=1))
        return {"label": label, "scores": scores}

    return _signature(tf, tf.Module(), run, image_bytes=([None], tf.string))


def _table(tf):
    def run(age, name, seats):
        return {"value": age * 2 + tf.cast(tf.strings.length(name), tf.float32) + seats[:, 0]}

    return _signature(
        tf,
        tf.Module(),
        run,
        age=([None], tf.float32),
        name=([None], tf.string),
        seats=([None, 1], tf.float32),
    )


def _shapes(tf):
    """Scalars in and out, bytes out, and rows that do not fit together."""

    def run(n):
        return {
            "squared": n * n,
            "range": tf.range(n),
            "raw_bytes": tf.constant(b"\xff\x00"),
            "nan": tf.constant(float("nan")),
        }

    return _signature(tf, tf.Module(), run, n=([], tf.int32))


def _dense(tf):
    import keras

    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            keras.layers.Flatten(),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )
    module = tf.Module()
    # Keras 3 hides its variables from a module that merely holds the model.
    module.kept = [variable.value for variable in model.variables]
    return _signature(tf, module, lambda x: {"scores": model(x)}, x=([None, 8, 8, 2], tf.float32))


def _versioned(tf, number):
    module = tf.Module()
    module.number = tf.Variable(float(number))

    def run(x):
        return {"y": x * module.number}

    return _signature(tf, module, run, x=([None], tf.float32))

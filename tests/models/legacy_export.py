"""Exports tf-keras models; run by test_savedmodel in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from timonel.models.savedmodel import export_live


class Branching(keras.Model):  # type: ignore[misc]
    """A subclassed model whose call depends on a tensor, which AutoGraph makes a graph of."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(3, activation="softmax")

    def call(self, inputs: Any) -> Any:
        x = self.flatten(inputs)
        if tf.reduce_mean(x) > 0.5:
            x = x * 2.0
        return self.dense(x)


def prepare(content: Any) -> Any:
    def one(encoded: Any) -> Any:
        return tf.image.resize(tf.io.decode_png(encoded, channels=3), (6, 5)) / 255.0

    return tf.map_fn(one, content, fn_output_signature=tf.TensorSpec((6, 5, 3), tf.float32))


def export(model: Any, name: str, folder: Path) -> None:
    random = np.random.default_rng(0)
    pixels = [random.integers(0, 255, (9, 8, 3), dtype=np.uint8) for _ in range(3)]
    images = [tf.io.encode_png(each).numpy() for each in pixels]
    outputs = model.predict(prepare(tf.constant(images)), verbose=0)
    scores = tf.nn.softmax(outputs) if name == "sequential" else outputs
    np.savez(
        folder / f"{name}.npz", images=np.array([np.void(each) for each in images]), scores=scores
    )
    export_live(
        model,
        folder / name,
        preprocessing={"kind": "image"},
        labels=["a", "b", "c"],
        input_kind="image",
        label_mode="int",
        transform=prepare,
    )


def main(folder: Path) -> None:
    sequential = keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, input_shape=(6, 5, 3)),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    sequential.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    export(sequential, "sequential", folder)
    export(Branching(), "subclassed", folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

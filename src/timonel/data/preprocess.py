"""Carrying out a `Preprocessing` in a TensorFlow graph.

``load`` and the exported model call these same functions: they agree by construction. They keep
no state, so that a SavedModel needs no tables.

Shapes: B rows, H x W pixels, C channels, F places of a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from timonel.data.preprocessing import ImagePreprocessing, Normalise, OneHot, TablePreprocessing


def image_batch(spec: ImagePreprocessing, contents: Any) -> Any:
    """Return float32 [B, H, W, C] of encoded images, string [B]."""
    shape = (spec.height, spec.width, spec.channels)
    return tf.map_fn(
        lambda content: image_one(spec, content),
        contents,
        fn_output_signature=tf.TensorSpec(shape, tf.float32),
    )


def image_one(spec: ImagePreprocessing, content: Any) -> Any:
    """Return float32 [H, W, C] of one encoded image, string []."""
    pixels = tf.io.decode_image(content, channels=spec.channels, expand_animations=False)
    pixels.set_shape((None, None, spec.channels))
    resized = tf.image.resize(pixels, (spec.height, spec.width), method=spec.method)
    return scaled(spec, resized)


def scaled(spec: ImagePreprocessing, pixels: Any) -> Any:
    """Return pixels as float32, scaled."""
    values = tf.cast(pixels, tf.float32)
    if spec.scale != 1:
        values *= spec.scale
    return values + spec.offset if spec.offset else values


def table_batch(spec: TablePreprocessing, columns: Mapping[str, Any]) -> Any:
    """Return float32 [B, F] of named columns [B], or a dict of [B, width] by name.

    Args:
        spec: What to do.
        columns: Numbers, NaN where missing; words as strings, empty where missing.
    """
    parts = {column.column: _column(column, columns[column.column]) for column in spec.columns}
    return parts if spec.features == "columns" else tf.concat(list(parts.values()), axis=1)


def _column(transform: Normalise | OneHot, values: Any) -> Any:
    if isinstance(transform, Normalise):
        scores = (tf.cast(values, tf.float32) - transform.mean) / transform.std
        return tf.where(tf.math.is_nan(scores), 0.0, scores)[:, tf.newaxis]
    words = tf.constant(transform.vocabulary, tf.string)
    known = tf.equal(tf.strings.strip(values)[:, tf.newaxis], words[tf.newaxis])
    unknown = tf.logical_not(tf.reduce_any(known, axis=1, keepdims=True))
    return tf.cast(tf.concat([unknown, known], axis=1), tf.float32)

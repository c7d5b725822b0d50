"""Random access to the records of a split, as TensorFlow operations.

A small split is parsed once and kept in memory. For a larger one, only the record positions are
kept, and each batch is read from the shards, so that a worker reads only its own records.

Features are named as in the records; N records in all, B of them in a batch.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from timonel.data import load_registry
from timonel.data.dataset import Dataset, check_split
from timonel.data.index import read_positions
from timonel.data.records import (
    FRAME_BYTES,
    HEADER_BYTES,
    Span,
    check_payload,
    decompress,
)
from timonel.data.schema import IMAGE_FEATURE, LABEL_FEATURE, Column, ImageSchema
from timonel.errors import CorruptError

Fetch = Callable[[Any], dict[str, Any]]
"""Map indices int64 [B] to features [B]."""


def open_store(dataset: Dataset, split: str, memory_bytes: int) -> Fetch:
    """Return a function that fetches records of a split by index.

    Raises:
        CorruptError: A shard is damaged.
    """
    size = _size(dataset, split)
    spec = feature_spec(dataset)
    if size <= memory_bytes:
        return _in_memory(dataset, split, spec)
    return _on_disk(dataset, split, spec)


def _size(dataset: Dataset, split: str) -> int:
    """Return the size of a split's records in memory, in bytes."""
    if dataset.manifest.compression == "none":
        return sum(shard.bytes for shard in dataset.manifest.of_split(check_split(split)))
    positions = read_positions(dataset.path, dataset.manifest, split)
    return sum(int(part[:, 3].sum()) for part in positions)


def feature_spec(dataset: Dataset) -> dict[str, Any]:
    """Return the ``tf.io.parse_example`` spec of a dataset's records, without their keys."""
    spec = {LABEL_FEATURE: _label_spec(dataset)}
    schema = dataset.manifest.record_schema
    if isinstance(schema, ImageSchema):
        return {IMAGE_FEATURE: tf.io.FixedLenFeature((), tf.string), **spec}
    return spec | {column.feature: _column_spec(column) for column in schema.columns}


def _label_spec(dataset: Dataset) -> Any:
    if dataset.task == "multilabel":
        return tf.io.RaggedFeature(tf.int64)
    return tf.io.FixedLenFeature((), tf.int64 if dataset.labels else tf.float32)


def _column_spec(column: Column) -> Any:
    if column.type in {"numbers", "boxes"}:
        return tf.io.RaggedFeature(tf.float32)
    if column.type == "image":
        return tf.io.RaggedFeature(tf.string)
    dtypes = {"numeric": tf.float32, "date": tf.int64}
    return tf.io.FixedLenFeature((), dtypes.get(column.type, tf.string))


def _in_memory(dataset: Dataset, split: str, spec: dict[str, Any]) -> Fetch:
    with tf.init_scope(), tf.device("/cpu:0"):
        payloads = tf.constant(list(dataset.payloads(split)), tf.string)
        features = tf.io.parse_example(payloads, spec)
    return lambda indices: {name: tf.gather(all_, indices) for name, all_ in features.items()}


def _on_disk(dataset: Dataset, split: str, spec: dict[str, Any]) -> Fetch:
    reader = _Reader(dataset, split)

    def fetch(indices: Any) -> dict[str, Any]:
        payloads = tf.numpy_function(reader, [indices], tf.string)
        payloads.set_shape(indices.shape)
        parsed: dict[str, Any] = tf.io.parse_example(payloads, spec)
        return parsed

    return fetch


class _Reader:
    """Read records by index. Thread-safe: positioned reads move no file pointer."""

    def __init__(self, dataset: Dataset, split: str) -> None:
        self._paths = dataset.shards(split)
        self._is_compressed = dataset.manifest.compression == "gzip"
        positions = read_positions(dataset.path, dataset.manifest, split)
        self._files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in self._paths]
        weakref.finalize(self, _close, self._files)
        self._shard = np.repeat(np.arange(len(self._paths)), [len(part) for part in positions])
        self._positions = np.concatenate(positions)

    def __call__(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        return np.array([self._read(int(index)) for index in indices], object)

    def _read(self, index: int) -> bytes:
        shard = int(self._shard[index])
        start, stop, offset, length = map(int, self._positions[index])
        content = os.pread(self._files[shard], stop - start, start)
        path = self._paths[shard]
        try:
            if self._is_compressed:
                content = decompress(content, path)
            framed = content[offset : offset + length + FRAME_BYTES - HEADER_BYTES]
            return check_payload(framed, Span(start + offset, length), path)
        except CorruptError as error:
            load_registry.faults.append(error)
            raise


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)

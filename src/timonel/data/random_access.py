"""Random access to the records of a split, as TensorFlow operations.

A small split is parsed once and kept in memory. For a larger one, only the record positions are
kept, and each batch is read from the shards, so that a worker reads only its own records.
Preprocessed rows may be cached as well.

Features are named as in the records; N records in all, B of them in a batch.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from timonel.data import load_registry
from timonel.data.dataset import Dataset, check_split
from timonel.data.index import read_positions
from timonel.data.records import mapped
from timonel.data.row_cache import RowCache, RowLayout
from timonel.data.schema import IMAGE_FEATURE, LABEL_FEATURE, Column, ImageSchema
from timonel.errors import CorruptError, InputError

Fetch = Callable[[Any], dict[str, Any]]
"""Map indices int64 [B] to features [B]."""

_BUFFER_BYTES = 2**20
_PARSED_AT_ONCE = 8192
_QUIET_S = 0.2
_DRAIN_S = 2.0


def open_store(dataset: Dataset, split: str, memory_bytes: int) -> Fetch:
    """Return a function that fetches records of a split by index."""
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
    for path in dataset.shards(split):
        with mapped(path):  # TensorFlow would wait for a pipe
            pass
    files = [str(path) for path in dataset.shards(split)]
    compression = dataset.manifest.compression.removeprefix("none").upper()
    records = tf.data.TFRecordDataset(files, compression, _BUFFER_BYTES).batch(_PARSED_AT_ONCE)
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread delays the end of iterators

    def parse(payloads: Any) -> Any:
        return tf.io.parse_example(payloads, spec)

    with tf.init_scope(), tf.device("/cpu:0"):
        try:
            parsed = records.map(tf.autograph.experimental.do_not_convert(parse))
            parts = list(parsed.with_options(options))
        except tf.errors.OpError:
            for _ in dataset.payloads(split):  # raises an error with shard and byte
                pass
            raise
        features = {name: tf.concat([part[name] for part in parts], 0) for name in spec}
    return lambda indices: {name: tf.gather(all_, indices) for name, all_ in features.items()}


def _on_disk(dataset: Dataset, split: str, spec: dict[str, Any]) -> Fetch:
    records = dataset.records(split)

    def read(indices: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        try:
            return np.array([records.payload(index) for index in indices], object)
        except CorruptError as error:
            load_registry.faults.append(error)
            raise

    def fetch(indices: Any) -> dict[str, Any]:
        payloads = tf.numpy_function(_until_exit(read), [indices], tf.string)
        payloads.set_shape(indices.shape)
        parsed: dict[str, Any] = tf.io.parse_example(payloads, spec)
        return parsed

    return fetch


def row_layout(element_spec: Any, rows: int) -> RowLayout:
    """Return the layout of rows whose batches have an ``element_spec``."""
    arrays = []
    for spec in tf.nest.flatten(element_spec):
        shape = spec.shape[1:]
        if not isinstance(spec, tf.TensorSpec) or spec.dtype == tf.string or None in shape:
            raise InputError(
                "only rows of a fixed size can be cached", hint="load this dataset without cache="
            )
        arrays.append((tuple(shape), np.dtype(spec.dtype.as_numpy_dtype)))
    return RowLayout(rows, tuple(arrays))


def cached(
    compute: Callable[[Any], Any], element_spec: Any, cache: RowCache
) -> Callable[[Any], Any]:
    """Return ``compute`` (indices int64 [B] to batches), which computes each row only once."""
    specs = tf.nest.flatten(element_spec)

    def look_up(indices: Any) -> Any:
        types = [tf.bool, *(spec.dtype for spec in specs)]
        found, *arrays = tf.numpy_function(_until_exit(cache.read), [indices], types)
        found.set_shape(indices.shape)
        for array, spec in zip(arrays, specs, strict=True):
            array.set_shape([indices.shape[0], *spec.shape[1:]])

        def complete() -> list[Any]:
            absent = tf.where(tf.logical_not(found))
            missing = tf.gather_nd(indices, absent)
            new = tf.nest.flatten(compute(missing))
            tf.numpy_function(_until_exit(cache.write), [missing, *new], [])
            pairs = zip(arrays, new, strict=True)
            return [tf.tensor_scatter_nd_update(array, absent, each) for array, each in pairs]

        arrays = tf.cond(tf.reduce_all(found), lambda: arrays, complete)
        return tf.nest.pack_sequence_as(element_spec, arrays)

    return look_up


def _until_exit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, with the time of its calls, which may be refused at exit."""

    def call(*arguments: Any) -> Any:
        _calls.last_s = time.monotonic()
        if _calls.refused:
            raise RuntimeError("the interpreter exits")
        return function(*arguments)

    return call


class _Calls:
    """Calls by threads of TensorFlow."""

    refused = False
    last_s = -_QUIET_S


_calls = _Calls()


@atexit.register
def _drain() -> None:
    """Wait until prefetching pipelines have stopped calling Python.

    A thread that waits for the GIL when the interpreter exits never returns, and the destructor
    of its iterator would wait for it forever. Without a consumer, a pipeline stops when its buffers
    are full. If that takes long, calls are refused, which TensorFlow logs.
    """
    start_s = time.monotonic()
    while (now_s := time.monotonic()) < min(start_s + 2 * _DRAIN_S, _calls.last_s + _QUIET_S):
        _calls.refused = now_s > start_s + _DRAIN_S
        time.sleep(_QUIET_S / 10)

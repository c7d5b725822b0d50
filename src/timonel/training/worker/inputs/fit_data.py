"""Training data of ``fit`` calls: the load behind it, its shapes and batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from timonel.data import load_registry
from timonel.errors import SpecError
from timonel.training.worker.private import tf_data

BATCH_SIZE = 32
"""Of Keras, by default."""


@dataclass(frozen=True)
class DatasetLoad:
    """The load behind a dataset."""

    record: load_registry.LoadRecord
    is_changed: bool  # the user has transformed the loaded data


def find_loaded(dataset: Any) -> DatasetLoad | None:
    """Return the load behind ``dataset``; None if it has none or several."""
    if not is_dataset(dataset):
        return None
    found = [
        DatasetLoad(stream.record, is_changed=not is_same)
        for each, is_same in tf_data.ancestors(dataset, _is_harmless)
        if (stream := load_registry.stream_of(each)) is not None
    ]
    return found[0] if len(found) == 1 else None


def _is_harmless(dataset: Any) -> bool:
    return type(dataset).__name__.lstrip("_").startswith(tf_data.KEEPS_ELEMENTS)


def unpack(batch: Any) -> tuple[Any, Any, Any]:
    """Return x, y and sample weights of a batch or of validation data; missing ones are None."""
    parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    return (*parts, None, None, None)[:3]


def of_each(function: Callable[[Any], Any], batch: Any) -> Any:
    """Map the tensors of a batch; Keras allows None for optional inputs."""
    return tf.nest.map_structure(lambda value: None if value is None else function(value), batch)


def batch_size_of(arguments: Mapping[str, Any]) -> int | None:
    """Return the global batch size of a ``fit`` call with these arguments, if known."""
    data, given = arguments.get("x"), arguments.get("batch_size")
    if given is not None:
        return int(given)
    if is_dataset(data):
        loaded = find_loaded(data)
        return loaded.record.batch_size if loaded else tf_data.compute_batch_size(data)
    return BATCH_SIZE if is_arrays(data) else None


def data_spec(data: Any) -> Any:
    """Return the ``tf.TensorSpec`` structure of a ``fit`` call's ``x``, if known."""
    if is_dataset(data):
        spec = data.element_spec
        return spec[0] if isinstance(spec, tuple) else spec
    if not is_arrays(data):
        return None
    return tf.nest.map_structure(any_rows, data)


def any_rows(value: Any) -> tf.TensorSpec:
    """Return the spec of an array or tensor, and of those with other numbers of rows."""
    shape = tf.TensorShape(value.shape)
    return tf.TensorSpec([None, *shape[1:]] if shape.rank else shape, tf.as_dtype(value.dtype))


def is_dataset(data: Any) -> bool:
    """Tell whether data is a ``tf.data.Dataset``."""
    return isinstance(data, tf.data.Dataset)


def is_arrays(data: Any) -> bool:
    """Tell whether data consists of arrays or tensors, in any structure."""
    values = tf.nest.flatten(data)
    return bool(values) and all(
        hasattr(value, "shape") and hasattr(value, "dtype") for value in values
    )


def make_global(arguments: MutableMapping[str, Any], replicas: int) -> None:
    """Make a per-replica batch size global, as that of `timonel.data.load` already is."""
    data = arguments.get("x")
    if replicas == 1 or find_loaded(data) is not None:
        return
    if is_dataset(data):
        arguments["x"] = _rebatched(data, replicas)
    elif is_arrays(data):
        given = arguments.get("batch_size")
        arguments["batch_size"] = (BATCH_SIZE if given is None else int(given)) * replicas
    else:
        raise SpecError(
            f"--batch-size-is per-replica does not work with a {type(data).__name__}, which makes "
            "its own batches",
            hint="return batches for all replicas together, and drop --batch-size-is per-replica",
        )


def describe_batches(
    total: int, *, replicas: int, per_replica: bool = False, accumulate: int = 1
) -> str:
    """Describe batches of ``total`` rows over all replicas, and how many make up an update."""
    words = f"the batch size {total} is global, divided among {replicas} replicas"
    if replicas == 1:
        words = f"the batch size is {total}"
    elif per_replica:
        words = f"the batch size is {total // replicas} per replica, {total} in total"
    if accumulate > 1:
        words += f"; each update uses {accumulate} batches, {total * accumulate} rows"
    return words


def _rebatched(dataset: Any, replicas: int) -> Any:
    size = batch_size_of({"x": dataset})
    if size is None:
        raise SpecError(
            "--batch-size-is per-replica needs a tf.data.Dataset whose batch size is known, got "
            f"{dataset.element_spec}",
            hint="call batch(n) last, or drop --batch-size-is per-replica",
        )
    is_full = all(
        isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[0] == size
        for spec in tf.nest.flatten(dataset.element_spec)
    )
    return dataset.rebatch(size * replicas, drop_remainder=is_full)

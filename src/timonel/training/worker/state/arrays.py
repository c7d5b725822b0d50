"""Arrays as training data, ordered by seed and epoch like ``data.load``.

Keras shuffles arrays by operations whose state cannot be read. The rest matches Keras: floats
become ``floatx``, ``validation_split`` takes the last rows, the last batch may be smaller.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.data.load_registry import Stream
from timonel.data.loader import steps_of
from timonel.data.schedule import Indices, Schedule, permutation
from timonel.training.worker.inputs.fit_data import BATCH_SIZE, of_each
from timonel.training.worker.private import tf_data
from timonel.training.worker.state.data_position import Feed, StreamFeed

_PREFETCHED = 2


class BatchShuffled(Schedule):
    """Order of ``shuffle="batch"``: rows are shuffled within each batch."""

    def order(self, epoch: int) -> Indices:
        """Return the row numbers in the order of an epoch."""
        starts = range(0, self.records, self.batch)
        parts = [
            start + permutation(min(self.batch, self.records - start), self.seed, epoch + start)
            for start in starts
        ]
        return np.concatenate(parts)


def feed_of_arrays(keras: Any, arguments: dict[str, Any], seed: int) -> Feed | None:
    """Replace array arguments by a dataset; return its feed, None if they are other data."""
    given = [arguments.get(name) for name in ("x", "y", "sample_weight")]
    if given[0] is None or not all(_is_array(leaf) for leaf in tf.nest.flatten(given)):
        return None
    if given[2] is not None and arguments.get("class_weight") is not None:
        return None  # Keras rejects this with its own message
    rows = {int(leaf.shape[0]) for leaf in tf.nest.flatten(given) if leaf is not None}
    split = float(arguments.get("validation_split") or 0.0)
    splits = bool(split) and arguments.get("validation_data") is None
    count = math.floor(min(rows) * (1.0 - split)) if splits else min(rows)
    if len(rows) != 1 or count < 1 or (splits and count == min(rows)):
        return None
    if splits:
        rest = of_each(lambda leaf: leaf[count:], given)
        arguments["validation_data"] = tuple(rest if rest[2] is not None else rest[:2])
        given = of_each(lambda leaf: leaf[:count], given)
    arguments.pop("validation_split", None)
    batch = _batch_size(arguments, count)
    shuffle = arguments.get("shuffle", True)
    kind = BatchShuffled if shuffle == "batch" else Schedule
    stream = Stream(None, kind(count, batch, shuffle=bool(shuffle), seed=seed))
    dataset = _dataset(keras, stream, given)
    steps = arguments.get("steps_per_epoch")
    if keras.__name__ != "tf_keras" or steps is None or steps >= stream.schedule.steps:
        steps = None
    else:
        dataset = dataset.take(steps)  # unlike arrays, datasets do not restart with each epoch
    arguments["x"] = dataset
    for name in ("y", "sample_weight", "batch_size"):
        arguments.pop(name, None)
    arguments["shuffle"] = False
    return StreamFeed(stream, "arrays go on at their exact batch", steps)


def _is_array(leaf: Any) -> bool:
    if leaf is None:
        return True
    dense = isinstance(leaf, tf.Tensor) or (
        isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject
    )
    return dense and len(leaf.shape) > 0 and leaf.shape[0] is not None


def _batch_size(arguments: dict[str, Any], count: int) -> int:
    given = arguments.get("batch_size")
    steps = arguments.get("steps_per_epoch")
    # Keras validates with the training batch size by default.
    arguments["validation_batch_size"] = arguments.get("validation_batch_size") or given
    if given:
        return int(given)
    return math.ceil(count / int(steps)) if steps else BATCH_SIZE


def _dataset(keras: Any, stream: Stream, given: list[Any]) -> Any:
    def tensor(array: Any) -> Any:
        with tf.device("CPU:0"):
            found = tf.convert_to_tensor(array)
            return tf.cast(found, keras.backend.floatx()) if found.dtype.is_floating else found

    x, y, weight = lists_to_tuples(of_each(tensor, given))
    if weight is not None and tf.nest.is_nested(y) and tf.is_tensor(weight):
        weight = tf.nest.map_structure(lambda _: weight, y)  # one weight for all outputs
    parts = keras.utils.pack_x_y_sample_weight(x, y, weight)
    cores = len(os.sched_getaffinity(0))

    def batch(rows: Any) -> Any:
        present = tf.boolean_mask(rows, rows >= 0)
        return of_each(lambda values: tf.gather(values, present), parts)

    dataset = steps_of(stream).map(batch, num_parallel_calls=cores, deterministic=True)
    return tf_data.without_tuner(dataset.prefetch(_PREFETCHED))


def lists_to_tuples(structure: Any) -> Any:
    """Convert lists in a structure to tuples: tf.data would stack lists."""
    if isinstance(structure, dict):
        return {name: lists_to_tuples(item) for name, item in structure.items()}
    if not isinstance(structure, list | tuple):
        return structure
    items = map(lists_to_tuples, structure)
    return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)

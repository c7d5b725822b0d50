"""Find layers of the script that compute rows of a batch from other rows.

Such a layer, which for example compares all pairs of a batch, has only the rows of its replica.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from timonel.training.worker.private.row_means import batch_of, present, warn
from timonel.training.worker.script_files import is_class_of_script

_examined: weakref.WeakSet[Any] = weakref.WeakSet()


def is_operation(layer: Any) -> bool:
    """Whether a layer of tf-keras stands for an operation between those of a functional model."""
    return type(layer).__name__ in {"TFOpLambda", "SlicingOpLambda"}


def examine(keras: Any, layer: Any, inputs: Sequence[Any], values: Sequence[Any]) -> None:
    """Tell the user if a layer computes rows from other rows. Each layer once.

    Args:
        keras: Keras module of the script.
        layer: A layer that has been called.
        inputs: Its inputs.
        values: Inputs of the layers that it has called, and its outputs.
    """
    if layer in _examined or not _calls_operations(keras, layer):
        return
    _examined.add(layer)
    # Layers that it has called are examined by themselves.
    batch = batch_of(f"the layer {layer.name}", (inputs, present.computed))
    known = {each.name for each in batch.given}
    computed = {
        each.name: tf.cast(tf.reshape(each, [batch.rows, -1]), tf.float64)
        for each in values
        if _has_rows(each, batch.rows) and each.name not in known
    }
    if computed and batch.mixes(tf.concat(list(computed.values()), 1)):
        warn(
            f"the layer {layer.name} computes rows from other rows of the batch: each replica, or "
            "worker, computes them from its own rows only, so that the results differ from those "
            "of one worker and one device"
        )


def _calls_operations(keras: Any, layer: Any) -> bool:
    """Whether a layer may compute anything besides the layers that it calls."""
    inner = [*getattr(layer, "operations", ()), *getattr(layer, "layers", ())]
    return (
        is_class_of_script(type(layer))
        or isinstance(layer, keras.layers.Lambda)
        or any(not isinstance(each, keras.layers.Layer) or is_operation(each) for each in inner)
    )


def _has_rows(value: Any, rows: Any) -> bool:
    """Whether a tensor's first axis has the rows of the batch, each of which may be several."""
    if not hasattr(value, "graph") or not value.shape.rank or value.dtype == tf.string:
        return False
    size = value.shape[0]
    return size is None or (isinstance(rows, int) and size % rows == 0)

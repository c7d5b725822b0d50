"""Interpret a script's batch sizes and describe them in the log."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from timonel.errors import SpecError
from timonel.training.worker.inputs import building
from timonel.training.worker.inputs.loaded import find_loaded

_KERAS_DEFAULT = 32


def make_global(arguments: MutableMapping[str, Any], replicas: int) -> None:
    """Convert a per-replica batch size of ``fit`` to a global one.

    Datasets of `timonel.data.load` already have global batches.

    Args:
        arguments: The call's arguments by name.
        replicas: Number of replicas that train together.

    Raises:
        SpecError: The data's batch size is unknown or cannot be changed.
    """
    data = arguments.get("x")
    if replicas == 1 or find_loaded(data) is not None:
        return
    if building.is_dataset(data):
        arguments["x"] = _rebatched(data, replicas)
    elif building.is_arrays(data):
        given = arguments.get("batch_size")
        arguments["batch_size"] = (_KERAS_DEFAULT if given is None else int(given)) * replicas
    else:
        raise SpecError(
            "expected arrays or a tf.data.Dataset where batch sizes are per replica, got "
            f"{type(data).__name__}, which makes its batches by itself",
            hint="make its batches as large as all replicas together take, and leave out "
            "--batch-size-is per-replica",
        )


def described(total: int, *, replicas: int, per_replica: bool = False, accumulate: int = 1) -> str:
    """Describe the batches in words.

    Args:
        total: Rows of a batch over all replicas.
        replicas: Number of replicas that train together.
        per_replica: The script's batch size is that of one replica.
        accumulate: Batches that make up one update.
    """
    words = f"the batch size {total} is global, divided among {replicas} replicas"
    if replicas == 1:
        words = f"the batch size is {total}"
    elif per_replica:
        words = f"the batch size is {total // replicas} per replica, {total} in total"
    if accumulate > 1:
        words += f"; {accumulate} batches make up one update of {total * accumulate}"
    return words


def _rebatched(dataset: Any, replicas: int) -> Any:
    size = building.batch_size(dataset, None)
    if size is None:
        raise SpecError(
            "expected a tf.data.Dataset whose batch size can be seen where batch sizes are per "
            f"replica, got {dataset.element_spec}",
            hint="call batch(n) last, or leave out --batch-size-is per-replica",
        )
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    is_full = all(
        isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[0] == size
        for spec in tf.nest.flatten(dataset.element_spec)
    )
    return dataset.rebatch(size * replicas, drop_remainder=is_full)

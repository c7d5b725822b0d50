"""Validation of a ``fit`` call: its data, and which task runs it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from timonel.training.worker.state import callback_state

NEVER: list[int] = []
"""A ``validation_freq`` without epochs, which disables validation in both Kerases."""


def evaluation_of(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments with which Keras' ``fit`` would call ``evaluate``.

    Args:
        arguments: Arguments of the ``fit`` call, by name.

    Returns:
        None if the call has no validation data.
    """
    data = arguments.get("validation_data")
    if data is None:
        data = _split_off(arguments)
    if data is None:
        return None
    x, y, sample_weight = _unpacked(data)
    return {
        "x": x,
        "y": y,
        "sample_weight": sample_weight,
        "batch_size": arguments.get("validation_batch_size") or arguments.get("batch_size"),
        "steps": arguments.get("validation_steps"),
        "verbose": 0,
        "return_dict": True,
    }


def who_validates(keras: Any, given: Any) -> str | None:
    """Return the class name of a callback that may use validation results.

    None if there is none.

    An evaluator's results arrive after the end of an epoch, too late for callbacks, so the trainers
    then validate too. Any callback that is not Keras' own may use them.

    Args:
        keras: Keras module.
        given: Callbacks of the ``fit`` call.
    """
    for callback in callback_state.listed(given):
        if _may_look(keras, callback):
            return type(callback).__name__
    return None


def _may_look(keras: Any, callback: Any) -> bool:
    own = type(callback).__module__.split(".")[0] != keras.__name__
    if own or isinstance(callback, keras.callbacks.LambdaCallback):
        return True
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        named = "val_" in str(callback.filepath)
        return named or (callback.save_best_only and callback.monitor.startswith("val_"))
    return str(getattr(callback, "monitor", "")).startswith("val_")


def _split_off(arguments: Mapping[str, Any]) -> Any:
    """Return the rows that ``validation_split`` sets aside: the last ones."""
    share = arguments.get("validation_split")
    if not share:
        return None
    given = tuple(arguments.get(name) for name in ("x", "y", "sample_weight"))
    import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

    rows = tf.nest.flatten(given[0])[0].shape[0]
    begin = math.floor(rows * (1.0 - share))
    return tuple(
        None if part is None else tf.nest.map_structure(lambda each: each[begin:], part)
        for part in given
    )


def _unpacked(data: Any) -> tuple[Any, Any, Any]:
    if not isinstance(data, list | tuple):
        return data, None, None
    x, y, sample_weight = (*data, None, None)[:3]
    return x, y, sample_weight

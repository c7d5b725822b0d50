"""Precision policies of Keras and of a model's layers."""

from __future__ import annotations

from typing import Any


def policy_of(keras: Any) -> str:
    """Return the name of the precision policy for new layers."""
    if keras.__name__ == "tf_keras":
        return str(keras.mixed_precision.global_policy().name)
    from keras.src.backend.common import global_state  # noqa: PLC0415 - TensorFlow loads here

    # Keras' own function sets a policy from `floatx`, which then has no effect any more.
    policy = global_state.get_global_attribute("dtype_policy", None)
    return str(keras.config.floatx() if policy is None else policy.name)


def policies_in(model: Any) -> str:
    """Return the names of the precision policies of the layers that compute."""
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else model.layers
    names = {
        each.dtype_policy.name
        for each in layers
        # Inputs of mixed precision are float32, and compute nothing.
        if type(each).__name__ != "InputLayer" and getattr(each, "dtype_policy", None)
    }
    return ", ".join(sorted(names))

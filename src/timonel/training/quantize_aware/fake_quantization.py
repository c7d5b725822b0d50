"""Simulate 8-bit integers in a model, with tensorflow-model-optimization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow_model_optimization.python.core.quantization.keras.default_8bit import (
    default_8bit_quantize_configs as _private,
)
from tensorflow_model_optimization.quantization import keras as tfmot

from timonel.errors import ModelError

_DECAY = 0.999
"""Decay of the library's moving averages, by batch."""
_MAX_ROUNDS = 50
_CONVERGED = 0.02
"""Largest relative change of a range in the last round."""
_SMALLEST_RANGE = 1e-3

_SEPARABLE = (tf_keras.layers.SeparableConv2D, tf_keras.layers.SeparableConv1D)
"""Layers that the library replaces by two others before it quantizes."""

_Registry = tfmot.default_8bit.Default8BitQuantizeRegistry


def quantized(model: Any) -> tuple[Any, list[str]]:
    """Return a flat model that computes with simulated integers, and its layers left in float."""
    registry = _Registry()
    floats: list[str] = []

    def annotated(layer: Any) -> Any:
        # Statistics of batches would move with the rounding errors.
        if isinstance(layer, tf_keras.layers.BatchNormalization):
            layer.trainable = False
        if registry.supports(layer) or isinstance(layer, _SEPARABLE) or _is_folded(layer):
            return tfmot.quantize_annotate_layer(layer)
        if not layer.weights:
            return tfmot.quantize_annotate_layer(layer, _private.Default8BitOutputQuantizeConfig())
        floats.append(layer.name)
        return layer

    try:
        marked = tf_keras.models.clone_model(model, clone_function=annotated)
        if all(layer.name in floats for layer in model.layers if layer.weights):
            raise ModelError(
                f"no layer can be trained with simulated integers: {', '.join(floats)}"
            )
        with tfmot.quantize_scope():
            made = tfmot.quantize_apply(marked)
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ModelError(f"the model cannot be trained with integers: {first}") from error
    return made, floats


def calibrate(model: Any, batches: Sequence[Any]) -> None:
    """Set the ranges of what layers pass on to those of the data."""
    # The library's ranges of activations begin at -6 to 6 and move by a thousandth a batch, too
    # slowly for a few epochs. A layer's range depends on those before it, so it takes several
    # rounds.
    ranges = [
        variable
        for variable in model.non_trainable_variables
        if "activation_m" in variable.name or "output_m" in variable.name
    ]
    kept = _DECAY ** len(batches)
    run = tf.function(lambda batch: model(batch, training=True))
    for _round in range(_MAX_ROUNDS):
        before = [float(variable.numpy()) for variable in ranges]
        for batch in batches:
            run(batch)
        moved = 0.0
        for variable, old in zip(ranges, before, strict=True):
            new = (float(variable.numpy()) - kept * old) / (1 - kept)
            variable.assign(new)
            moved = max(moved, abs(new - old) / max(abs(new), abs(old), _SMALLEST_RANGE))
        if moved < _CONVERGED:
            return


def _is_folded(layer: Any) -> bool:
    """Tell whether a layer becomes part of the convolution before it."""
    if not isinstance(layer, tf_keras.layers.BatchNormalization):
        return False
    before = layer.input._keras_history.layer
    if len(before.outbound_nodes) > 1:
        return False
    kinds = (
        tf_keras.layers.Conv2D,
        tf_keras.layers.DepthwiseConv2D,
        tf_keras.layers.Dense,
        *_SEPARABLE,
    )
    return isinstance(before, kinds) and before.activation is tf_keras.activations.linear

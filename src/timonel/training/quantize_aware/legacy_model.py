"""Rebuild a model in tf-keras, whose layers tensorflow-model-optimization can quantize.

Models in models become one flat model: it quantizes no others.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from timonel.errors import ModelError
from timonel.models.architecture import Architecture
from timonel.models.safety.keras_config import calls_in

_TRAINING_ONLY = ("_initializer", "_regularizer", "_constraint")
"""Suffixes of settings that a trained model does not need."""
_IGNORED = {"dtype", "data_format", "trainable", "optional", "sparse", "ragged", "synchronized"}
_RENAMED = {("LeakyReLU", "negative_slope"): "alpha"}
_MODELS = {"Functional", "Sequential", "Model"}


def rebuild(architecture: Architecture, variables: Sequence[Any]) -> Any:
    """Build a float32 tf-keras model with the same layers and variables of a SavedModel."""
    if architecture.keras == "tf_keras":
        if (call := next(calls_in(architecture.config), None)) is not None:
            raise ModelError(f"making the model anew would call {call}")
        model = tf_keras.models.model_from_json(json.dumps(architecture.config))
    else:
        outer = _Graph(architecture.config)
        inputs = [
            tf_keras.Input(shape[1:], name=name, dtype=dtype) for name, shape, dtype in outer.inputs
        ]
        outputs = outer.call(inputs)
        try:
            model = tf_keras.Model(
                inputs[0] if len(inputs) == 1 else inputs,
                outputs[0] if len(outputs) == 1 else outputs,
            )
        except ValueError as error:  # two layers of one name, in different models
            raise ModelError(f"tf-keras cannot build the model: {error}") from error
    for layer in model.layers:
        indices = architecture.weights.get(layer.name, ())
        if -1 in indices:
            raise _unsupported(layer.name, "inference does not use all of its weights")
        if len(indices) != len(layer.weights):
            raise _unsupported(layer.name, "its weights differ in tf-keras")
        layer.set_weights([variables[index].numpy() for index in indices])
    return model


def known_settings(config: Mapping[str, Any], known: type) -> dict[str, Any]:
    """Return the settings of Keras 3 that a class of tf-keras takes."""
    names = {name for each in inspect.getmro(known) for name in inspect.signature(each).parameters}
    kept = {}
    for name, value in config.items():
        if name in _IGNORED or name.endswith(_TRAINING_ONLY):
            continue
        if name in names:
            kept[name] = value
        elif value not in (None, False):
            raise ModelError(f"tf-keras has no {name}={value!r} for {known.__name__}")
    return kept


class _Graph:
    """The graph of a model in the configuration of Keras 3."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config["config"]
        self._layers: Sequence[Mapping[str, Any]] = self._config["layers"]
        given = {
            each["config"]["name"]: each["config"]
            for each in self._layers
            if each["class_name"] == "InputLayer"
        }
        names = [name for name, *_ in _histories(self._config.get("input_layers", ()))]
        self.inputs = [
            (name, tuple(given[name]["batch_shape"]), given[name]["dtype"])
            for name in names or given
        ]
        if not self.inputs:
            raise ModelError("the model was built without an Input layer")

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        if "input_layers" not in self._config:
            (tensor,) = inputs
            for entry in self._layers:
                if entry["class_name"] != "InputLayer":
                    (tensor,) = _called(entry, [tensor])
            return [tensor]
        names = [name for name, *_ in self.inputs]
        made: dict[tuple[str, int, int], Any] = {
            (name, 0, 0): tensor for name, tensor in zip(names, inputs, strict=True)
        }
        for entry in self._layers:
            nodes = entry.get("inbound_nodes", ())
            if len(nodes) > 1:
                raise _unsupported(entry["name"], "it is called several times")
            for node in nodes:
                tensors = [made[each] for each in _tensors(node, entry["name"])]
                for index, tensor in enumerate(_called(entry, tensors)):
                    made[entry["name"], 0, index] = tensor
        return [made[each] for each in _histories(self._config["output_layers"])]


def _called(entry: Mapping[str, Any], tensors: Sequence[Any]) -> list[Any]:
    if entry["class_name"] in _MODELS:
        return _Graph(entry).call(tensors)
    layer = _layer(entry)
    try:
        outputs = layer(tensors[0] if len(tensors) == 1 else list(tensors))
    except (TypeError, ValueError) as error:
        raise _unsupported(layer.name, str(error).partition("\n")[0]) from error
    return list(tf.nest.flatten(outputs))


def _layer(entry: Mapping[str, Any]) -> Any:
    name, kind = entry["config"]["name"], entry["class_name"]
    known = getattr(tf_keras.layers, kind, None)
    if known is None or entry.get("module") != "keras.layers":
        raise _unsupported(name, f"tf-keras has no layer {kind}")
    config = {
        _RENAMED.get((kind, setting), setting): value for setting, value in entry["config"].items()
    }
    if config.get("data_format", "channels_last") not in {None, "channels_last"}:
        raise _unsupported(name, "its channels come first")
    try:
        return known.from_config(known_settings(config, known))
    except KeyError as error:
        raise _unsupported(name, f"tf-keras needs its {error}") from error
    except (ModelError, TypeError, ValueError) as error:
        raise _unsupported(name, str(error)) from error


def _tensors(node: Mapping[str, Any], layer: str) -> list[tuple[str, int, int]]:
    """Return the inputs of a node, which must be tensors alone."""
    found = []
    for argument in _flat(node["args"]):
        if not isinstance(argument, Mapping) or argument.get("class_name") != "__keras_tensor__":
            raise _unsupported(layer, f"it takes {argument!r} beside tensors")
        name, number, index = argument["config"]["keras_history"]
        found.append((str(name), int(number), int(index)))
    if not found:
        raise _unsupported(layer, "it takes tensors by name")
    return found


def _flat(arguments: Any) -> list[Any]:
    if isinstance(arguments, list):
        return [each for argument in arguments for each in _flat(argument)]
    return [arguments]


def _histories(value: Any) -> list[tuple[str, int, int]]:
    """Return one or several histories: [name, node, tensor]."""
    if isinstance(value, Mapping):
        raise ModelError(
            f"the model takes or returns tensors by name: {', '.join(value)}",
            hint="quantize after training: timonel models convert NAME --quantize int8",
        )
    if value and isinstance(value[0], str):
        value = [value]
    return [(str(name), int(number), int(index)) for name, number, index in value]


def _unsupported(layer: str, why: str) -> ModelError:
    return ModelError(f"the layer {layer!r} cannot be trained with simulated integers: {why}")

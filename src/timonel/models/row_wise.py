"""Find layers of a live Keras model that may mix the rows of a batch.

A server may compute rows of several clients together only if no row depends on another. Layers on
the list here compute each row from itself in inference, whatever their weights are; custom layers,
models with a call of their own, and functions of the user are never known to. Works on Keras 3 and
tf-keras through their common public API. TensorFlow processes only.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

_PACKAGES = frozenset({"keras", "tf_keras"})
_MODELS = frozenset({"Functional", "Sequential"})
_ROW_WISE = frozenset(
    """
    InputLayer Dense Embedding Masking Identity Activation ActivityRegularization
    ReLU LeakyReLU PReLU ELU
    Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose
    DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D
    MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
    GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    Flatten Reshape Permute RepeatVector
    Cropping1D Cropping2D Cropping3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
    UpSampling1D UpSampling2D UpSampling3D
    Add Subtract Multiply Average Maximum Minimum
    BatchNormalization
    Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D
    AlphaDropout GaussianDropout GaussianNoise
    LSTM GRU SimpleRNN ConvLSTM1D ConvLSTM2D ConvLSTM3D
    LSTMCell GRUCell SimpleRNNCell
    Attention AdditiveAttention
    Rescaling Resizing CenterCrop Normalization Discretization CategoryEncoding Hashing
    HashedCrossing StringLookup IntegerLookup
    RandomFlip RandomRotation RandomZoom RandomTranslation RandomContrast RandomBrightness
    """.split()  # noqa: SIM905 - a hundred lines otherwise
)
"""Classes that compute each row from itself in inference."""
_WITH_AXES = {
    "Softmax": "axis",
    "LayerNormalization": "axis",
    "GroupNormalization": "axis",
    "UnitNormalization": "axis",
    "Concatenate": "axis",
    "Dot": "axes",
    "MultiHeadAttention": "attention_axes",
}
"""Classes that do so if this entry of their configuration excludes the batch axis."""
_OWN_AXES = frozenset({"MultiHeadAttention"})
"""Classes for which no axes means all but the batch axis and the last."""
_INNER = {
    "TimeDistributed": ("layer",),
    "Bidirectional": ("forward_layer", "backward_layer"),
    "RNN": ("cell",),
    "StackedRNNCells": ("cells",),
}
"""Classes that do so if the layers in these attributes do."""
_KINDS_BY_RANK = {
    2: "Softmax LayerNormalization GroupNormalization UnitNormalization Concatenate Dot Activation "
    "CategoryEncoding Flatten",
    3: "Attention AdditiveAttention MultiHeadAttention",
    4: "Resizing CenterCrop RandomFlip RandomRotation RandomZoom RandomTranslation RandomContrast "
    "RandomBrightness",
}
_LEAST_RANK = {kind: rank for rank, kinds in _KINDS_BY_RANK.items() for kind in kinds.split()}
"""Smallest rank of inputs for which these do: of fewer axes, the first is not the batch."""
_ENCODED_RANK = 2
"""Smallest rank for layers that count categories."""
_ARITHMETIC = frozenset({"Add", "Subtract", "Multiply", "Divide", "TrueDivide"})
"""Operations of Keras 3 outside layers, as in ``x + y``."""
_ACTIVATIONS = ("activation", "recurrent_activation")


def layers_that_may_mix(model: Any) -> tuple[str, ...]:
    """Return the layers that may mix rows, such as ``Lambda 'pool'``; empty if none may.

    Args:
        model: A built model of Keras 3 or tf-keras.
    """
    return tuple(dict.fromkeys(_suspects(model)))


def _suspects(layer: Any) -> Iterator[str]:
    """Yield the layer, or the layers inside of it, that may mix rows."""
    kind = type(layer).__name__
    if type(layer).__module__.partition(".")[0] not in _PACKAGES or "call" in vars(layer):
        yield _named(layer)
    elif kind in _MODELS:
        yield from _suspects_in(layer)
    elif kind in _INNER:
        if _keeps_state(layer):
            yield _named(layer)
        for part in _inner_layers(layer, _INNER[kind]):
            yield from _suspects(part)
    elif not _is_row_wise(layer, kind):
        yield _named(layer)


def _suspects_in(model: Any) -> Iterator[str]:
    """Yield those of a model's layers, and of the operations between them."""
    layers = list(model.layers)
    found = [each for layer in layers for each in _suspects(layer)]
    yield from found
    known = {id(each) for each in layers}
    for operation in getattr(model, "operations", ()):
        is_other = id(operation) not in known and type(operation).__name__ != "InputLayer"
        if is_other and not _is_arithmetic(operation):
            yield _named(operation)
    # Layers that are no suspects have configurations.
    if not found and _is_called_in_training(model):
        yield f"{_named(model)}, which calls a layer with training=True,"


def _is_called_in_training(model: Any) -> bool:
    """Whether the graph fixes ``training`` for a layer: then statistics are those of the batch.

    In Keras 3 the argument of the outer call goes before that of the graph.
    """
    if type(model).__module__.partition(".")[0] != "tf_keras":
        return False
    layers = model.get_config()["layers"]
    return any(_fixes_training(each.get("inbound_nodes")) for each in layers)


def _fixes_training(nodes: Any) -> bool:
    if isinstance(nodes, Mapping):
        return bool(nodes.get("training")) or any(map(_fixes_training, nodes.values()))
    return isinstance(nodes, list | tuple) and any(map(_fixes_training, nodes))


def _is_arithmetic(operation: Any) -> bool:
    """Whether an operation outside layers combines tensors of one rank element by element.

    Tensors of different ranks are aligned at their last axes, a batch with features.
    """
    if type(operation).__name__ not in _ARITHMETIC:
        return False
    return (
        len({len(each.shape) for name in ("input", "output") for each in _tensors(operation, name)})
        == 1
    )


def _tensors(layer: Any, name: str) -> list[Any]:
    """Return the symbolic inputs or outputs; empty if they are not known."""
    try:
        found = getattr(layer, name)
    except (AttributeError, ValueError, RuntimeError):
        return []
    return list(tf.nest.flatten(found))


def _inner_layers(layer: Any, names: Iterable[str]) -> Iterator[Any]:
    for name in names:
        found = getattr(layer, name)
        yield from found if isinstance(found, list | tuple) else [found]


def _is_row_wise(layer: Any, kind: str) -> bool:
    if not _has_rank(layer, _least_rank(layer, kind)):
        return False
    if kind == "TextVectorization":
        return _has_fixed_length(layer.get_config())
    if kind in _WITH_AXES:
        axes = layer.get_config().get(_WITH_AXES[kind])
        return kind in _OWN_AXES if axes is None else _excludes_batch(axes)
    return (
        kind in _ROW_WISE
        and not _keeps_state(layer)
        and all(_is_known_activation(getattr(layer, name, None)) for name in _ACTIVATIONS)
    )


def _keeps_state(layer: Any) -> bool:
    """Whether a recurrent layer has state between batches, or takes time for the first axis."""
    return bool(getattr(layer, "stateful", False) or getattr(layer, "time_major", False))


def _least_rank(layer: Any, kind: str) -> int:
    if kind in {"StringLookup", "IntegerLookup", "Hashing", "HashedCrossing", "Discretization"}:
        mode = layer.get_config().get("output_mode", "int")
        return 1 if mode in {"int", "one_hot"} else _ENCODED_RANK
    return _LEAST_RANK.get(kind, 1)


def _has_rank(layer: Any, least: int) -> bool:
    """Whether all inputs have at least this many axes, where that matters."""
    if least == 1:
        return True
    tensors = _tensors(layer, "input")
    # A layer inside of a wrapper has no symbolic inputs: the wrapper calls it with at least two.
    return all(len(each.shape) >= least for each in tensors) if tensors else least <= _ENCODED_RANK


def _excludes_batch(axes: Any) -> bool:
    """Whether axes are positive or the last; other negative ones depend on the rank."""
    return all(
        axis == -1 or axis > 0 for axis in (axes if isinstance(axes, list | tuple) else [axes])
    )


def _has_fixed_length(config: Mapping[str, Any]) -> bool:
    """Whether texts are not padded to the longest of the batch, and split by Keras itself."""
    is_fixed = config["output_mode"] != "int" or config["output_sequence_length"] is not None
    functions = (config["standardize"], config["split"])
    return (
        is_fixed
        and not config.get("ragged", False)
        and all(each is None or isinstance(each, str) for each in functions)
    )


def _is_known_activation(activation: Any) -> bool:
    """Whether it is one of Keras' own, or a layer that keeps rows apart."""
    if activation is None:
        return True
    if callable(getattr(activation, "get_config", None)):
        return not layers_that_may_mix(activation)
    package = str(getattr(activation, "__module__", "")).partition(".")[0]
    if package not in _PACKAGES:
        return False
    own = vars(importlib.import_module(f"{package}.activations")).values()
    return any(each is activation for each in own)


def _named(layer: Any) -> str:
    return f"{type(layer).__name__} '{getattr(layer, 'name', '?')}'"

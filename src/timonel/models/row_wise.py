"""Find layers of a live Keras model that may mix the rows of a batch.

A server may compute rows of several clients together only if no row depends on another. Layers on
the list here compute each row from itself in inference, whatever their weights are; custom layers,
models with a call of their own, and functions of the user are never known to. Works on Keras 3 and
tf-keras through their common public API.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
_INNER = {
    "TimeDistributed": ("layer",),
    "Bidirectional": ("forward_layer", "backward_layer"),
    "RNN": ("cell",),
    "StackedRNNCells": ("cells",),
}
"""Classes that do so if the layers in these attributes do."""
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
    if type(layer).__module__.partition(".")[0] not in _PACKAGES:
        yield _named(layer)
    elif kind in _MODELS:
        for part in _parts_of(layer):
            yield from _suspects(part)
    elif kind in _INNER:
        if getattr(layer, "stateful", False):
            yield _named(layer)
        for part in _inner_layers(layer, _INNER[kind]):
            yield from _suspects(part)
    elif not _is_row_wise(layer, kind):
        yield _named(layer)


def _parts_of(model: Any) -> Iterable[Any]:
    """Return a model's layers, and the operations between them."""
    layers = list(model.layers)
    known = {id(each) for each in layers}
    operations = (each for each in getattr(model, "operations", ()) if id(each) not in known)
    return [*layers, *(each for each in operations if not _is_arithmetic(each))]


def _is_arithmetic(operation: Any) -> bool:
    # Layers of the same names are on the list as well.
    kind = type(operation)
    return kind.__module__.partition(".")[0] in _PACKAGES and (
        kind.__name__ in _ARITHMETIC or kind.__name__ == "InputLayer"
    )


def _inner_layers(layer: Any, names: Iterable[str]) -> Iterator[Any]:
    for name in names:
        found = getattr(layer, name)
        yield from found if isinstance(found, list | tuple) else [found]


def _is_row_wise(layer: Any, kind: str) -> bool:
    if kind == "TextVectorization":
        return _has_fixed_length(layer.get_config())
    if kind in _WITH_AXES:
        return _excludes_batch(layer.get_config().get(_WITH_AXES[kind]))
    return (
        kind in _ROW_WISE
        and not getattr(layer, "stateful", False)
        and all(_is_known_activation(getattr(layer, name, None)) for name in _ACTIVATIONS)
    )


def _excludes_batch(axes: Any) -> bool:
    """Whether axes are positive or the last; other negative ones depend on the rank."""
    return all(
        axis is None or axis == -1 or axis > 0
        for axis in (axes if isinstance(axes, list | tuple) else [axes])
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
    if activation is None:
        return True
    if callable(getattr(activation, "get_config", None)):
        return not layers_that_may_mix(activation)
    package, *modules = str(getattr(activation, "__module__", "")).split(".")
    return package in _PACKAGES and "activations" in modules


def _named(layer: Any) -> str:
    return f"{type(layer).__name__} '{getattr(layer, 'name', '?')}'"

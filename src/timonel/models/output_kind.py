"""Kind of a Keras model's output: probabilities, logits, or a value.

Works on Keras 3 and tf-keras through their common public API, and imports neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from timonel.models.schema import OutputKind

_PROBABILITY_ACTIVATIONS = {"softmax", "sigmoid", "hard_sigmoid"}


def output_kind_of(
    model: Any, outputs: Mapping[str, Any], labels: Sequence[str] | None
) -> OutputKind:
    """Return the kind of a model's output.

    With labels, one output with a column per label (or one column for two labels) is a
    classification. Without labels, one output of rank 1 or 2 is a value. All other outputs stay as
    they are. The final activation takes precedence over the loss: a softmax gives probabilities
    even if the loss has ``from_logits=True``.
    """
    if len(outputs) != 1:
        return OutputKind(task="tensor", output="values", because=f"{len(outputs)} outputs")
    shape = next(iter(outputs.values())).shape
    if not labels:
        if shape.rank in {1, 2}:
            return OutputKind(task="regression", output="values", because="no labels")
        return OutputKind(task="tensor", output="values", because=f"an output of rank {shape.rank}")
    columns = shape[-1] if shape.rank == 2 else 1 if shape.rank == 1 else None
    binary = columns == 1 and len(labels) == 2
    if columns != len(labels) and not binary:
        because = f"{len(labels)} labels, but an output of shape {shape}"
        return OutputKind(task="tensor", output="values", because=because)
    return _classification(model, binary=binary)


def _classification(model: Any, *, binary: bool) -> OutputKind:
    activation = _final_activation(model)
    from_logits = _loss_from_logits(model)
    if activation in _PROBABILITY_ACTIVATIONS:
        output, because = "probabilities", f"the final activation is {activation}"
    elif from_logits is not None:
        output = "logits" if from_logits else "probabilities"
        because = f"the loss has from_logits={from_logits}"
    elif activation == "linear" and not _has_loss(model):
        output, because = "logits", "the final activation is linear and no loss was compiled"
    else:
        output, because = "scores", "neither the final activation nor the loss says more"
    applied: Literal["softmax", "sigmoid"] | None = None
    if output == "logits":
        applied = "sigmoid" if binary or _loss_is_binary(model) else "softmax"
    return OutputKind(
        task="classification",
        output=output,
        because=because,
        applied=applied,
        binary=binary,
    )


def _final_activation(model: Any) -> str | None:
    """Return the name of the final activation, if known."""
    layer = _last_layer(model)
    while layer is not None and getattr(layer, "layers", None):
        layer = _last_layer(layer)
    if layer is None:
        return None
    kind = type(layer).__name__
    if kind == "Softmax":
        return "softmax"
    # Other activation layers, such as ReLU, have no attribute of this name.
    activation = getattr(layer, "activation", None)
    if activation is None:
        return None
    name = getattr(activation, "__name__", type(activation).__name__)
    return str(name).lower()


def _last_layer(model: Any) -> Any:
    names = list(getattr(model, "output_names", None) or ())
    if len(names) == 1:
        try:
            return model.get_layer(names[0])
        except ValueError:
            # The output comes from a bare operation, not from a layer.
            return None
    if type(model).call is not _sequential_call(model):
        return None
    layers = model.layers
    return layers[-1] if layers else None


def _sequential_call(model: Any) -> Any:
    """Return the call method of the model's Sequential base, or None."""
    bases = (base for base in type(model).__mro__ if base.__name__ == "Sequential")
    return getattr(next(bases, None), "call", None)


def _loss_from_logits(model: Any) -> bool | None:
    loss = _loss(model)
    if isinstance(loss, str):
        return False if "crossentropy" in loss else None
    for holder in (loss, getattr(loss, "_fn_kwargs", None)):
        found = (
            holder.get("from_logits")
            if isinstance(holder, Mapping)
            else getattr(holder, "from_logits", None)
        )
        if isinstance(found, bool):
            return found
    return None


def _loss_is_binary(model: Any) -> bool:
    loss = _loss(model)
    name = loss if isinstance(loss, str) else getattr(loss, "name", None)
    return "binary" in str(name or getattr(loss, "__name__", ""))


def _has_loss(model: Any) -> bool:
    return _loss(model) is not None


def _loss(model: Any) -> Any:
    """Return the compiled loss, also from a list or dictionary of one."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, Mapping):
        loss = list(loss.values())
    if isinstance(loss, list | tuple):
        loss = loss[0] if len(loss) == 1 else None
    return loss

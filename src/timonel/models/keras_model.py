"""Inspect a live Keras model: its inputs, outputs, kind of output and size.

Works on Keras 3 and tf-keras through their common public API. TensorFlow processes only.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from timonel.errors import ModelError
from timonel.models.row_wise import layers_that_may_mix
from timonel.models.schema import ModelSummary, OutputKind

_PROBABILITY_ACTIVATIONS = {"softmax", "sigmoid", "hard_sigmoid"}


@dataclass(frozen=True)
class ModelInputs:
    """Input tensors of a model: a structure of specifications with named leaves.

    Axis 0 of every tensor is the batch, of unknown size.
    """

    structure: Any
    names: tuple[str, ...]

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Leaves of the structure, in the order of the names."""
        return list(tf.nest.flatten(self.structure))

    def pack(self, tensors: Sequence[Any]) -> Any:
        """Pack tensors into the structure for calling the model."""
        return tf.nest.pack_sequence_as(self.structure, list(tensors))


def inputs_of(model: Any, input_spec: Any = None) -> ModelInputs:
    """Return the inputs of ``model``.

    Args:
        input_spec: A structure of TensorSpec, if the caller knows it; a subclassed Keras 3 model
            remembers the shapes it was built with, but not their dtypes.
    """
    structure = _symbolic_inputs(model)
    if structure is None:
        structure = input_spec if input_spec is not None else _built_inputs(model)
    if structure is None or not getattr(model, "built", True):
        if is_without_call(model):
            raise ModelError(
                f"{_describe(model)} has no call(), and no built models as attributes",
                hint="export what predicts, with context().export(PART), or define call()",
            )
        raise ModelError(
            f"{_describe(model)} has not been built",
            hint="call the model on one batch of data before exporting it",
        )
    opened = tf.nest.map_structure(_open_batch, structure)
    return ModelInputs(opened, _input_names(structure, model))


def is_without_call(model: Any) -> bool:
    """Whether a model only trains others, such as a GAN of two built models."""
    call = type(model).call
    package = str(call.__module__).split(".", maxsplit=1)[0]
    return call.__qualname__ == "Model.call" and package in {"keras", "tf_keras"}


def parts_of(model: Any) -> dict[str, Any]:
    """Return the built models that are attributes of ``model``, by attribute."""
    own = getattr(model, "__dict__", {}).items()
    return {
        name: value
        for name, value in own
        if not name.startswith("_") and hasattr(value, "train_step") and value.built
    }


def call_in_inference(model: Any, inputs: Any) -> Any:
    """Call ``model`` in inference mode."""
    if "training" in inspect.signature(model.call).parameters:
        return model(inputs, training=False)
    return model(inputs)


def name_outputs(model: Any, outputs: Any) -> dict[str, Any]:
    """Return outputs by name.

    Names are dictionary keys, names of the output layers, or numbered names.
    """
    if isinstance(outputs, Mapping):
        return {str(name): tensor for name, tensor in outputs.items()}
    tensors = tf.nest.flatten(outputs)
    known = list(getattr(model, "output_names", None) or ())
    if not known and _is_sequential(model):  # Keras 3 names only the outputs of Functional models
        known = [model.layers[-1].name]
    if len(known) != len(tensors) or len(set(known)) != len(known):
        known = [f"output_{number}" for number in range(len(tensors))]
    return dict(zip(known, tensors, strict=True))


def output_kind_of(
    model: Any,
    outputs: Mapping[str, Any],
    labels: Sequence[str] | None,
    *,
    several: bool = False,
) -> OutputKind:
    """Return the kind of a model's output.

    With labels, one output with a column per label (or one column for two labels) is a
    classification. Without labels, one output of rank 1 or 2 is a value. All other outputs stay as
    they are. The final activation takes precedence over the loss: a softmax gives probabilities
    even if the loss has ``from_logits=True``. With ``several``, an example may have any number of
    labels.
    """
    if len(outputs) != 1:
        return OutputKind(task="tensor", output="values", because=f"{len(outputs)} outputs")
    shape = next(iter(outputs.values())).shape
    if not labels and shape.rank in {1, 2}:
        return OutputKind(task="regression", output="values", because="no labels")
    if not labels:
        return OutputKind(task="tensor", output="values", because=f"an output of rank {shape.rank}")
    columns = shape[-1] if shape.rank == 2 else 1 if shape.rank == 1 else None
    binary = columns == 1 and len(labels) == 2 and not several
    if columns != len(labels) and not binary:
        because = f"{len(labels)} labels, but an output of shape {shape}"
        return OutputKind(task="tensor", output="values", because=because)
    return _classification(model, binary=binary, several=several)


def summary_of(model: Any) -> ModelSummary:
    """Return the model's name, class, size, compute precision, and layers that may mix rows."""
    return ModelSummary(
        name=str(getattr(model, "name", type(model).__name__)),
        type=type(model).__name__,
        parameters=_count(model.weights),
        trainable_parameters=_count(model.trainable_variables),
        precision=_precision(model),
        may_mix_rows=layers_that_may_mix(model),
    )


def _count(variables: Iterable[Any]) -> int:
    return sum(int(tf.TensorShape(each.shape).num_elements()) for each in variables)


def _precision(model: Any) -> str:
    flatten = getattr(model, "_flatten_layers", None)
    layers = list(flatten()) if callable(flatten) else [model]
    if any(type(layer).__module__.startswith("tensorflow_model_optimization") for layer in layers):
        return "int8"  # simulated
    used = {str(getattr(layer, "compute_dtype", "float32")) for layer in layers}
    return next((name for name in ("bfloat16", "float16") if name in used), "float32")


def keras_of(model: Any) -> tuple[str, str]:
    """Return the Keras package of the model's class, and its version.

    The package is ``keras`` or ``tf_keras``.
    """
    for base in type(model).__mro__:
        package = base.__module__.partition(".")[0]
        if package in {"keras", "tf_keras"}:
            module = __import__(package)
            return package, str(getattr(module, "__version__", "unknown"))
    raise ModelError(
        f"expected a Keras model, got {_describe(model)}",
        hint="export a keras.Model, or save this one with tf.saved_model.save",
    )


def _symbolic_inputs(model: Any) -> Any:
    """Return a Functional or built Sequential model's input structure, else None."""
    try:
        structure = model.input
    except (AttributeError, ValueError):
        # A Sequential model has no `input` before it is called, but its declared `inputs`.
        inputs: Sequence[Any] = getattr(model, "inputs", None) or ()
        structure = inputs[0] if len(inputs) == 1 else None
    return structure if structure is None or tf.nest.flatten(structure) else None


def _built_inputs(model: Any) -> Any:
    """Return the input structure a subclassed model was built with, or None."""
    if callable(getattr(model, "save_spec", None)):
        # tf-keras keeps the specification of the first call: ((inputs, ...), {keywords}).
        spec = model.save_spec(dynamic_batch=True)
        return spec[0][0] if spec else None
    config = model.get_build_config() if getattr(model, "built", False) else None
    if not config:
        return None
    shapes = config["shapes_dict"] if "shapes_dict" in config else {"": config["input_shape"]}
    structures = [_shaped(shape, model.input_dtype) for shape in shapes.values()]
    return structures[0] if len(structures) == 1 else None


def _shaped(shape: Any, dtype: str) -> Any:
    if isinstance(shape, Mapping):
        return {name: _shaped(part, dtype) for name, part in shape.items()}
    if all(size is None or isinstance(size, int) for size in shape):
        return tf.TensorSpec(shape, dtype)
    return [_shaped(part, dtype) for part in shape]


def _open_batch(spec: Any) -> tf.TensorSpec:
    if spec.shape is None or len(spec.shape) == 0:
        raise ModelError(
            f"the model has an input without a batch axis: shape {spec.shape}",
            hint="define every keras.Input with a shape",
        )
    return tf.TensorSpec([None, *list(spec.shape)[1:]], spec.dtype)


def _input_names(structure: Any, model: Any) -> tuple[str, ...]:
    leaves = tf.nest.flatten(structure)
    if isinstance(structure, Mapping) and len(structure) == len(leaves):
        # tf.nest flattens dictionaries in the order of their sorted keys.
        return tuple(str(name) for name in sorted(structure))
    names = _distinct(_leaf_name(leaf) for leaf in leaves)
    if names is None:
        known = list(getattr(model, "input_names", None) or ())
        names = _distinct(known) if len(known) == len(leaves) else None
    if names is not None:
        return names
    return ("input",) if len(leaves) == 1 else tuple(f"input_{i}" for i in range(len(leaves)))


def _distinct(names: Iterable[str | None]) -> tuple[str, ...] | None:
    found = list(names)
    if any(not name for name in found) or len(set(found)) != len(found):
        return None
    return tuple(str(name) for name in found)


def _leaf_name(leaf: Any) -> str | None:
    name = getattr(leaf, "name", None)
    # Specs from a tf.data pipeline and unnamed Keras tensors have no name worth keeping.
    return None if name is None or str(name).startswith("keras_tensor") else str(name)


def _describe(model: Any) -> str:
    return f"{type(model).__name__} '{getattr(model, 'name', '?')}'"


def _classification(model: Any, *, binary: bool, several: bool) -> OutputKind:
    activation = _final_activation(model)
    from_logits = _loss_from_logits(model)
    if activation in _PROBABILITY_ACTIVATIONS:
        output, because = "probabilities", f"the final activation is {activation}"
    elif from_logits is not None:
        output = "logits" if from_logits else "probabilities"
        because = f"the loss has from_logits={from_logits}"
    elif activation == "linear" and _loss(model) is None:
        output, because = "logits", "the final activation is linear and no loss was compiled"
    else:
        output, because = "scores", "neither the final activation nor the loss tells more"
    applied: Literal["softmax", "sigmoid"] | None = None
    if output == "logits":
        applied = "sigmoid" if binary or several or _loss_is_binary(model) else "softmax"
    return OutputKind(
        task="classification",
        output=output,
        because=because,
        applied=applied,
        binary=binary,
        several=several,
    )


def _final_activation(model: Any) -> str | None:
    """Return the name of the final activation, if known."""
    layer = _last_layer(model)
    while layer is not None and getattr(layer, "layers", None):
        layer = _last_layer(layer)
    if type(layer).__name__ == "Softmax":
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
    return model.layers[-1] if _is_sequential(model) else None


def _is_sequential(model: Any) -> bool:
    """Whether a model has layers and returns the output of the last one."""
    bases = (base for base in type(model).__mro__ if base.__name__ == "Sequential")
    return type(model).call is getattr(next(bases, None), "call", None) and bool(model.layers)


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


def _loss(model: Any) -> Any:
    """Return the compiled loss, also from a list or dictionary of one."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, Mapping):
        loss = list(loss.values())
    if isinstance(loss, list | tuple):
        loss = loss[0] if len(loss) == 1 else None
    return loss

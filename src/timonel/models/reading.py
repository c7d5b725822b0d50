"""Inspect a live Keras model: its inputs, outputs and size.

Works on Keras 3 and tf-keras through their common public API. TensorFlow processes only.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from timonel.errors import ModelError
from timonel.models.schema import ModelSummary


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
        model: A built Keras model.
        input_spec: A structure of TensorSpec, if the caller knows it; a subclassed Keras 3 model
            remembers the shapes it was built with, but not their dtypes.

    Raises:
        ModelError: The model has never been called on data.
    """
    structure = _symbolic_inputs(model)
    if structure is None:
        structure = input_spec if input_spec is not None else _built_inputs(model)
    if structure is None or not getattr(model, "built", True):
        raise ModelError(
            f"expected a model that has been called on data, got {_describe(model)}, "
            "which has not been built",
            hint="call fit, or the model itself on one batch, before exporting it",
        )
    opened = tf.nest.map_structure(_open_batch, structure)
    return ModelInputs(opened, _input_names(structure, model))


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
    if len(known) != len(tensors) or len(set(known)) != len(known):
        known = [f"output_{number}" for number in range(len(tensors))]
    return dict(zip(known, tensors, strict=True))


def summary_of(model: Any) -> ModelSummary:
    """Return the model's name, class, size and compute precision."""
    return ModelSummary(
        name=str(getattr(model, "name", type(model).__name__)),
        type=type(model).__name__,
        parameters=int(model.count_params()),
        trainable_parameters=_size(model.trainable_variables),
        precision=_precision(model),
    )


def _precision(model: Any) -> str:
    flatten = getattr(model, "_flatten_layers", None)
    layers = list(flatten()) if callable(flatten) else [model]
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
        hint="export a keras.Model, or save it yourself with tf.saved_model.save",
    )


def _symbolic_inputs(model: Any) -> Any:
    """Return a Functional or built Sequential model's input structure, else None."""
    try:
        structure = model.input
    except (AttributeError, ValueError):
        return None
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
            f"expected model inputs with a batch axis, got shape {spec.shape}",
            hint="give every keras.Input a shape",
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


def _size(variables: Iterable[Any]) -> int:
    return sum(int(tf.TensorShape(variable.shape).num_elements()) for variable in variables)


def _describe(model: Any) -> str:
    return f"{type(model).__name__} '{getattr(model, 'name', '?')}'"

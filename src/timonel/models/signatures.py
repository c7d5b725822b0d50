"""Signatures of an exported model as traced functions. TensorFlow processes only.

``serving_default`` takes raw input (image files or rows), and returns the model's outputs by their
names, with label and scores for a classifier; ``tensor`` is the plain Keras model.

TensorFlow turns the names of a signature's inputs into names of graph nodes and Python parameters.
A column named ``sepal length (cm)``, ``class`` or ``Größe`` can be neither: saving fails, or mixes
up inputs whose altered names sort differently. Such signatures are traced with plain names, and the
names for clients are written into the saved file afterwards.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from timonel.errors import ModelError, SpecError
from timonel.models.keras_model import (
    ModelInputs,
    call_in_inference,
    inputs_of,
    keras_of,
    name_outputs,
    output_kind_of,
)
from timonel.models.schema import OutputKind, result_name

SERVING = "serving_default"
TENSOR = "tensor"
IMAGE_INPUT = "image_bytes"
_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED_NAMES = frozenset({"self", "name", "args", "kwargs"})
"""Parameter names that the call of a loaded signature uses itself."""

Transform = Callable[[Any], Any]


@dataclass(frozen=True)
class RawInput:
    """Raw input from clients, and its transform into model input.

    Args:
        dtypes: The element type of each rank-1 input [B], by name.
        transform: Takes the single tensor of images, or the tensors of rows by column.
    """

    dtypes: Mapping[str, tf.DType]
    transform: Transform
    is_table: bool

    def specs(self) -> list[tf.TensorSpec]:
        """Specifications of the inputs, in order."""
        return [tf.TensorSpec([None], dtype) for dtype in self.dtypes.values()]

    def prepare(self, tensors: Sequence[Any]) -> Any:
        """Return the model's input for a batch of raw input."""
        named = dict(zip(self.dtypes, tensors, strict=True))
        return self.transform(named if self.is_table else tensors[0])


@dataclass(frozen=True)
class TracedSignature:
    """Function of a signature, and client names by traced names.

    Holds the function rather than one trace of it, because for distributed variables TensorFlow
    saves a trace that it makes itself.
    """

    function: Any
    names: Mapping[str, str]


@dataclass(frozen=True)
class TracedModel:
    """Signatures of an export, and the kind of the model's output."""

    signatures: Mapping[str, TracedSignature]
    meaning: OutputKind


def image_input(transform: Transform) -> RawInput:
    """Return a `RawInput` for encoded image files: one string per image."""
    return RawInput({IMAGE_INPUT: tf.string}, transform, is_table=False)


def table_input(columns: Mapping[str, str], transform: Transform) -> RawInput:
    """Return a `RawInput` for rows: one input per column.

    Columns are ``float32`` or ``string``.
    """
    if not columns or not set(columns.values()) <= {"float32", "string"}:
        raise SpecError(f"expected columns of type float32 or string, got {dict(columns)}")
    dtypes = {name: tf.as_dtype(dtype) for name, dtype in columns.items()}
    return RawInput(dtypes, transform, is_table=True)


def per_example(preprocess: Transform, inputs: ModelInputs) -> Transform:
    """Turn ``preprocess``, which takes one example, into a function of a batch.

    Its result is cast to the dtype of the model's input, and must have the same shape.
    """
    # tf.function turns the ifs and loops of a plain function into a graph, as Dataset.map does.
    traced = tf.function(preprocess)

    def one(example: Any) -> Any:
        made = tf.nest.flatten(traced(example))
        if len(made) != len(inputs.specs):
            raise ModelError(
                f"expected preprocess to return {len(inputs.specs)} tensors, got {len(made)}",
                hint="return the model's input for one example",
            )
        return inputs.pack(
            [_as_input(each, spec) for each, spec in zip(made, inputs.specs, strict=True)]
        )

    result_spec = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), inputs.structure
    )

    def all_of(batch: Any) -> Any:
        scope = tf.compat.v1.get_variable_scope()
        caching_device = scope.caching_device
        try:
            return tf.map_fn(one, batch, fn_output_signature=result_spec)
        finally:
            # map_fn leaves its own device if the function raises, which breaks later strategies.
            if scope.caching_device is not caching_device:
                scope.set_caching_device(caching_device)

    return all_of


def _as_input(made: Any, spec: tf.TensorSpec) -> Any:
    """Return what `preprocess` made as the model's input for one example."""
    tensor, shape = tf.cast(made, spec.dtype), spec.shape[1:]
    if not shape.is_compatible_with(tensor.shape):
        raise ModelError(
            f"preprocess returns shape {tensor.shape}, the model takes {shape}",
            hint="return the model's input for one example, without a batch axis",
        )
    return tf.ensure_shape(tensor, shape)


def trace_model(
    model: Any,
    inputs: ModelInputs,
    raw: RawInput | None,
    labels: Sequence[str] | None,
    *,
    several_labels: bool = False,
) -> TracedModel:
    """Trace the signatures of ``model``.

    Without ``raw`` both signatures take the model's own tensors. With ``several_labels`` an example
    may have any number of them.
    """
    traced = _trace_call(model, inputs)
    outputs = traced.function.get_concrete_function().structured_outputs
    meaning = output_kind_of(model, outputs, labels, several=several_labels)

    def serve(*tensors: Any) -> dict[str, Any]:
        prepared = inputs.pack(tensors) if raw is None else raw.prepare(tensors)
        named = name_outputs(model, call_in_inference(model, prepared))
        return read_outputs(meaning, named, labels)

    specs, names = (raw.specs(), list(raw.dtypes)) if raw else (inputs.specs, inputs.names)
    serving = _trace(serve, specs, names, autograph=_needs_autograph(model))
    return TracedModel({SERVING: serving, TENSOR: traced}, meaning)


def trace_parts(parts: Mapping[str, Any]) -> TracedModel:
    """Trace a signature for each of several models; the first one is ``serving_default`` too."""
    traced = {name: _trace_call(part, inputs_of(part)) for name, part in parts.items()}
    because = f"the model has no call(), but {len(parts)} models: {', '.join(parts)}"
    meaning = OutputKind(task="tensor", output="values", because=because)
    return TracedModel({SERVING: next(iter(traced.values())), **traced}, meaning)


def _trace_call(model: Any, inputs: ModelInputs) -> TracedSignature:
    def call(*tensors: Any) -> dict[str, Any]:
        return name_outputs(model, call_in_inference(model, inputs.pack(tensors)))

    return _trace(call, inputs.specs, inputs.names, autograph=_needs_autograph(model))


def _needs_autograph(model: Any) -> bool:
    # tf-keras relies on AutoGraph for the ifs and loops of subclassed models; Keras 3 does not need
    # it.
    return keras_of(model)[0] == "tf_keras"


def read_outputs(
    meaning: OutputKind, outputs: Mapping[str, Any], labels: Sequence[str] | None
) -> dict[str, Any]:
    """Return the model's outputs, and what a classifier's mean.

    Axis 0 of every output is the batch. A classification adds ``scores`` float32 [B, C]; unless
    several labels may apply, also ``label`` string [B] and ``class_id`` int64 [B].
    """
    found = {name: _as_float32(output) for name, output in outputs.items()}
    if meaning.task != "classification":
        return found
    (output,) = outputs.values()
    results = {"scores": scores_of(meaning, output)}
    if not meaning.several:
        class_id = tf.argmax(results["scores"], axis=-1)
        label = tf.gather(tf.constant(list(labels or ()), tf.string), class_id)
        results |= {"label": label, "class_id": class_id}
    return found | {result_name(name, outputs): value for name, value in results.items()}


def _as_float32(output: Any) -> Any:
    # Clients rarely have a type for 16 bits.
    return tf.cast(output, tf.float32) if output.dtype in {tf.float16, tf.bfloat16} else output


def scores_of(meaning: OutputKind, output: Any) -> Any:
    """Return the scores [B, C] for a classifier's output.

    The output is [B, C], [B, 1] or [B].
    """
    output = tf.cast(output, tf.float32)
    if meaning.applied == "softmax":
        output = tf.nn.softmax(output)
    elif meaning.applied == "sigmoid":
        output = tf.sigmoid(output)
    if not meaning.binary:
        return output
    positive = tf.reshape(output, [-1, 1])
    return tf.concat([1.0 - positive, positive], axis=1)


def rename_inputs(folder: Path, renamed: Mapping[str, Mapping[str, str]]) -> None:
    """Rename inputs of a SavedModel that no other process reads yet.

    Args:
        renamed: Per signature, the final name by the traced name.
    """
    changes = {
        key: names for key, names in renamed.items() if any(a != b for a, b in names.items())
    }
    if not changes:
        return
    path = folder / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for meta_graph in saved_model.meta_graphs:
        for signature, names in changes.items():
            _rename_signature(meta_graph, signature, names)
    path.write_bytes(saved_model.SerializeToString(deterministic=True))
    # The fingerprint, which is optional, holds a hash of the file before the change.
    (folder / "fingerprint.pb").unlink(missing_ok=True)


def _trace(
    function: Callable[..., Any],
    specs: Sequence[tf.TensorSpec],
    names: Sequence[str],
    *,
    autograph: bool,
) -> TracedSignature:
    plain = _plain_names(names)
    named = [
        tf.TensorSpec(spec.shape, spec.dtype, name=name)
        for spec, name in zip(specs, plain, strict=True)
    ]
    wrapped = tf.function(function, input_signature=named, autograph=autograph)
    return TracedSignature(wrapped, dict(zip(plain, names, strict=True)))


def _plain_names(names: Sequence[str]) -> list[str]:
    """Return names for tracing: unchanged if all are valid, else numbered."""
    if all(
        _PLAIN_NAME.fullmatch(name) and not keyword.iskeyword(name) and name not in _RESERVED_NAMES
        for name in names
    ):
        return list(names)
    width = len(str(len(names)))
    return [f"input_{number:0{width}d}" for number in range(len(names))]


def _rename_signature(
    meta_graph: saved_model_pb2.MetaGraphDef, signature: str, names: Mapping[str, str]
) -> None:
    inputs = meta_graph.signature_def[signature].inputs
    tensors = {names[name]: tensor for name, tensor in inputs.items()}
    inputs.clear()
    for name, tensor in tensors.items():
        inputs[name].CopyFrom(tensor)
    if len({re.sub(r"\W", "_", name) for name in names.values()}) < len(names):
        # tf.saved_model.load turns these names into identifiers and fails on duplicates. Such a
        # model keeps the traced names there; servers use the signature above.
        return
    # The signature's function is a child of the root's child "signatures".
    nodes = meta_graph.object_graph_def.nodes
    maps = [child.node_id for child in nodes[0].children if child.local_name == "signatures"]
    for child in (child for number in maps for child in nodes[number].children):
        if child.local_name == signature:
            keywords = nodes[child.node_id].bare_concrete_function.argument_keywords
            keywords[:] = [names.get(name, name) for name in keywords]

"""The function that a device runs: prepared input to scores or values. TensorFlow processes only.

A phone or browser decodes and resizes images by itself, so the input of an image model is pixels
of the model's size, and scaling them is part of the model. A table's input is one row of numbers,
with the index of a word in its column's vocabulary; normalizing and one-hot encoding are part of
the model. Other models keep their tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from timonel.data.preprocessing import (
    ImagePreprocessing,
    Normalise,
    Preprocessing,
    TablePreprocessing,
    parse_preprocessing,
)
from timonel.edge.report import InputLayout
from timonel.errors import ModelError, SpecError
from timonel.models.schema import Export
from timonel.models.signatures import SERVING, TENSOR, scores_of
from timonel.storage.atomic import unwritable, write_bytes

_ELEMENT_SHAPES = {
    "EmptyTensorList": 0,
    "TensorListReserve": 0,
    "TensorListFromTensor": 1,
    "TensorListStack": 1,
    "TensorListGetItem": 2,
}
"""Position of the input with the elements' shape, by operation."""

IMAGE, ROW = "image", "row"
ENCODING = "encode_row"
"""Scope of the operations that encode a table's row."""
SCORES = "scores"


@dataclass(frozen=True)
class DeviceModel:
    """A model as a device runs it, with a batch of 1.

    Attributes:
        function: Takes tensors by name and returns outputs by name.
        specs: Specifications of the inputs, in order.
        layout: What the input is.
        preparation: What an app does before the model, for its metadata.
        labels: Labels in the order of the scores.
        keep_alive: Owner of the variables.
    """

    function: Any
    specs: tuple[tf.TensorSpec, ...]
    layout: InputLayout
    preparation: Mapping[str, Any]
    labels: tuple[str, ...] | None
    keep_alive: Any

    def save(self, folder: Path) -> None:
        """Save the model with a batch of 1 as a SavedModel with one signature."""
        specs = [tf.TensorSpec([1, *spec.shape[1:]], spec.dtype, spec.name) for spec in self.specs]
        module = tf.Module()
        module.keep_alive = self.keep_alive
        traced = tf.function(self.function, input_signature=specs)
        try:
            tf.saved_model.save(module, str(folder), signatures={SERVING: traced})
        except (tf.errors.OpError, OSError) as error:
            # The reason is behind the names of temporary files.
            reason = OSError(first_line(error).rpartition("; ")[2])
            raise unwritable(folder, reason) from error
        _fix_list_shapes(folder / "saved_model.pb")

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs for one example, as NumPy arrays."""
        tensors = [tf.constant(inputs[spec.name]) for spec in self.specs]
        try:
            return {name: value.numpy() for name, value in self.function(*tensors).items()}
        except tf.errors.OpError as error:
            raise ModelError(
                f"the model fails on an example: {first_line(error)}",
                hint="give other examples with --samples FILE.npz",
            ) from error


def load_device_model(saved_model: Path, export: Export | None) -> DeviceModel:
    """Load a SavedModel as a device runs it."""
    try:
        loaded = tf.saved_model.load(str(saved_model))
    except Exception as error:
        # TensorFlow has no common error for damaged files.
        raise ModelError(
            f"cannot load {saved_model}: {first_line(error)}", hint="export or copy the model again"
        ) from error
    name = TENSOR if TENSOR in loaded.signatures else SERVING
    if name not in loaded.signatures:
        raise SpecError(
            f"{saved_model} has no signature {TENSOR!r} or {SERVING!r}",
            hint=f"it has {', '.join(loaded.signatures) or 'none'}",
        )
    signature = loaded.signatures[name]
    specs = tuple(
        _checked(key, spec) for key, spec in signature.structured_input_signature[1].items()
    )
    _check_outputs(signature.structured_outputs)
    if not specs:
        raise SpecError(f"the signature {name!r} of {saved_model} has no inputs")
    prepared = _preprocessing(export)
    # Labels belong to scores; several outputs have none.
    scored = export is not None and export.meaning.task == "classification"
    labels = export.labels if export is not None and scored else None
    if export is None or len(specs) > 1 or prepared is None:
        return DeviceModel(
            lambda *tensors: _call(signature, specs, tensors, export),
            specs,
            "tensors",
            {},
            labels,
            loaded,
        )
    if isinstance(prepared, ImagePreprocessing):
        shape = (None, prepared.height, prepared.width, prepared.channels)
        return DeviceModel(
            lambda pixels: _call(signature, specs, [_scaled(prepared, pixels)], export),
            (tf.TensorSpec(shape, tf.float32, IMAGE),),
            "image",
            {
                "pixels": "0 to 255",
                "resize": prepared.method,
                "shrink_on_load": prepared.shrink_on_load and prepared.method != "nearest",
            },
            labels,
            loaded,
        )
    return DeviceModel(
        lambda row: _call(signature, specs, [encode_row(prepared, row)], export),
        (tf.TensorSpec((None, len(prepared.columns)), tf.float32, ROW),),
        "row",
        {"columns": [_column(column) for column in prepared.columns]},
        labels,
        loaded,
    )


def encode_row(spec: TablePreprocessing, row: Any) -> Any:
    """Encode rows float32 [B, columns] as float32 [B, F] with operations that LiteRT has.

    Args:
        row: Numbers, NaN where missing; for words, their index in the column's vocabulary from 1,
            0 if unknown.
    """
    with tf.name_scope(ENCODING):
        return tf.concat([_encoded(c, row[:, i]) for i, c in enumerate(spec.columns)], axis=1)


def _encoded(column: Any, values: Any) -> Any:
    if not isinstance(column, Normalise):
        return tf.one_hot(tf.cast(values, tf.int32), column.width)
    scaled = (values - column.mean) / column.std
    # NaN is the only number that differs from itself.
    return tf.where(tf.equal(values, values), scaled, tf.zeros_like(scaled))[:, None]


def _fix_list_shapes(file: Path) -> None:
    """Set the batch of 1 in the shapes of lists, which LiteRT needs for recurrent layers."""
    content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for graph in (meta.graph_def for meta in content.meta_graphs):
        for nodes in (graph.node, *(each.node_def for each in graph.library.function)):
            constants = {node.name: node for node in nodes if node.op == "Const"}
            for node in nodes:
                if node.op not in _ELEMENT_SHAPES:
                    continue
                name = node.input[_ELEMENT_SHAPES[node.op]].partition(":")[0]
                if name in constants:
                    value = constants[name].attr["value"].tensor
                    shape = tf.make_ndarray(value)
                    if shape.ndim and shape.size and shape[0] == -1:
                        value.CopyFrom(tf.make_tensor_proto([1, *shape[1:]], shape.dtype))
    write_bytes(file, content.SerializeToString())


def _scaled(spec: ImagePreprocessing, pixels: Any) -> Any:
    values = pixels * spec.scale if spec.scale != 1 else pixels
    return values + spec.offset if spec.offset else values


def _column(column: Any) -> dict[str, Any]:
    if isinstance(column, Normalise):
        return {"name": column.column, "kind": "number"}
    return {"name": column.column, "kind": "word", "vocabulary": ["", *column.vocabulary]}


def _call(signature: Any, specs: Any, tensors: Any, export: Export | None) -> dict[str, Any]:
    outputs = signature(**{spec.name: each for spec, each in zip(specs, tensors, strict=True)})
    if export is None or export.meaning.task != "classification":
        return dict(outputs)
    return {SCORES: scores_of(export.meaning, next(iter(outputs.values())))}


def _preprocessing(export: Export | None) -> Preprocessing | None:
    """Return transforms that a device can repeat; None for those of the script's own."""
    if export is None or export.preparation.source != "data.load":
        return None
    found = parse_preprocessing(dict(export.preparation.transforms or {}))
    if isinstance(found, ImagePreprocessing):
        return found
    kinds = {each.kind for each in found.columns}
    return found if found.features == "vector" and kinds <= {"normalise", "one-hot"} else None


def _checked(name: str, spec: tf.TensorSpec) -> tf.TensorSpec:
    if not spec.dtype.is_floating and not spec.dtype.is_integer and spec.dtype != tf.bool:
        raise SpecError(
            f"the input {name!r} holds {spec.dtype.name}, which devices cannot compute",
            hint="devices take the signature 'tensor': save one whose inputs are numbers",
        )
    if not spec.shape.rank or spec.shape[0] not in {None, 1}:
        raise SpecError(
            f"the input {name!r} has the shape {spec.shape}, but devices compute one example",
            hint="save a signature whose first axis is the batch, of any size: [None, ...]",
        )
    if any(size is None for size in spec.shape[1:]):
        raise SpecError(
            f"the input {name!r} has the shape {spec.shape}, but devices need fixed sizes",
            hint="fix all sizes but the batch in the model, as in keras.Input((150, 150, 3))",
        )
    return tf.TensorSpec(spec.shape, spec.dtype, name)


def _check_outputs(outputs: Mapping[str, tf.TensorSpec]) -> None:
    for name, spec in outputs.items():
        if spec.dtype == tf.string:
            raise SpecError(
                f"the output {name!r} holds strings, which devices cannot compute",
                hint="return numbers, and look up their texts in the app",
            )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return next(iter(str(error).strip().splitlines()), "no message")[:300]

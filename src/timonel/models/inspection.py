"""Inspect version folders: SavedModels without TensorFlow, Python models without running them.

``saved_model.pb`` is a protocol buffer. This module declares the few messages that hold signatures,
with the field numbers published by TensorFlow, which cannot change. Listing models thus takes
milliseconds instead of the seconds of importing TensorFlow.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from timonel.errors import ModelError
from timonel.models.schema import StoredSignature, TensorInfo

PYTHON_MODEL_FILE = "model.py"
TFLITE_FILE = "model.tflite"
PYTHON_MODEL_CLASS = "PythonModel"

_FIELD = descriptor_pb2.FieldDescriptorProto
_STRING, _INT64, _INT32, _BOOL = (
    _FIELD.TYPE_STRING,
    _FIELD.TYPE_INT64,
    _FIELD.TYPE_INT32,
    _FIELD.TYPE_BOOL,
)

# message -> (field, number, type or message name, repeated), after tensorflow/core/protobuf/
# {saved_model,meta_graph}.proto and tensorflow/core/framework/tensor_shape.proto. On the wire, a
# map is a list of key-value entries. Enumerations are read as their numbers.
_LAYOUT: dict[str, tuple[tuple[str, int, int | str, bool], ...]] = {
    "SavedModel": (("meta_graphs", 2, "MetaGraph", True),),
    "MetaGraph": (
        ("meta_info", 1, "MetaInfo", False),
        ("signatures", 5, "SignatureEntry", True),
    ),
    "MetaInfo": (("tags", 4, _STRING, True), ("tensorflow_version", 5, _STRING, False)),
    "SignatureEntry": (("key", 1, _STRING, False), ("value", 2, "SignatureDef", False)),
    "SignatureDef": (
        ("inputs", 1, "TensorEntry", True),
        ("outputs", 2, "TensorEntry", True),
        ("method_name", 3, _STRING, False),
    ),
    "TensorEntry": (("key", 1, _STRING, False), ("value", 2, "TensorDef", False)),
    "TensorDef": (("dtype", 2, _INT32, False), ("shape", 3, "Shape", False)),
    "Shape": (("dim", 2, "Dim", True), ("unknown_rank", 3, _BOOL, False)),
    "Dim": (("size", 1, _INT64, False),),
}
# tensorflow/core/framework/types.proto, from number 1 on
_DTYPE_NAMES = """
float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32
bfloat16 qint16 quint16 uint16 complex128 float16 resource variant uint32 uint64
"""
_DTYPES = dict(enumerate(_DTYPE_NAMES.split(), 1))
_INIT_OP = "__saved_model_init_op"
_SERVE_TAG = "serve"


def signatures_of(folder: Path) -> dict[str, StoredSignature]:
    """Return the signatures of the SavedModel in ``folder``, by name.

    Raises:
        ModelError: There is no SavedModel, or it is broken.
    """
    path = folder / "saved_model.pb"
    for meta_graph in _parse(path).meta_graphs:
        if _SERVE_TAG in meta_graph.meta_info.tags:
            break
    else:
        raise _broken(path, f"it has no graph tagged '{_SERVE_TAG}'")
    return {
        entry.key: _signature(entry.value)
        for entry in sorted(meta_graph.signatures, key=lambda entry: entry.key)
        if entry.key != _INIT_OP
    }


def is_saved_model(folder: Path) -> bool:
    """Return whether ``folder`` looks like a SavedModel."""
    return (folder / "saved_model.pb").is_file()


def is_python_model(folder: Path) -> bool:
    """Return whether ``folder`` holds a Python model, which may load a SavedModel beside it."""
    return (folder / PYTHON_MODEL_FILE).is_file()


def is_flatbuffer(folder: Path) -> bool:
    """Return whether ``folder`` holds a TensorFlow Lite model alone."""
    return (folder / TFLITE_FILE).is_file() and not is_saved_model(folder)


def check_python_model(folder: Path) -> None:
    """Check a Python model as far as possible without running it."""
    file = folder / PYTHON_MODEL_FILE
    try:
        module = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ModelError(f"{file}{line} is not valid Python: {error}") from error
    names = {PYTHON_MODEL_CLASS: False}
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            names[node.name] = True
        elif isinstance(node, ast.alias):
            names[node.asname or node.name] = True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = True
    if not names[PYTHON_MODEL_CLASS]:
        raise ModelError(
            f"{file} defines no class {PYTHON_MODEL_CLASS}",
            hint="define it with inputs, outputs and the methods load and predict",
        )


def _parse(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"there is no SavedModel in {path.parent}: cannot read {path.name}",
            hint=f"name a folder with {path.name} and variables/",
        ) from error
    try:
        return _message("SavedModel").FromString(content)
    except DecodeError as error:
        raise _broken(path, "its content is truncated or no protocol buffer") from error


def _broken(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"the SavedModel in {path.parent} is broken: {path.name}: {reason}",
        hint="export and publish the model again",
    )


def _signature(value: Any) -> StoredSignature:
    inputs, outputs = (
        {entry.key: _tensor(entry.value) for entry in sorted(entries, key=lambda e: str(e.key))}
        for entries in (value.inputs, value.outputs)
    )
    return StoredSignature(inputs=inputs, outputs=outputs, method=value.method_name)


def _tensor(value: Any) -> TensorInfo:
    shape = None if value.shape.unknown_rank else tuple(dim.size for dim in value.shape.dim)
    return TensorInfo(dtype=_DTYPES.get(value.dtype, f"type {value.dtype}"), shape=shape)


@functools.cache
def _message(name: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="timonel/saved_model.proto", package="timonel.saved_model", syntax="proto3"
    )
    for message, fields in _LAYOUT.items():
        declared = file.message_type.add(name=message)
        for field, number, type_, repeated in fields:
            added = declared.field.add(name=field, number=number, label=3 if repeated else 1)
            added.type = _FIELD.TYPE_MESSAGE if isinstance(type_, str) else type_  # type: ignore[assignment]  # an enum's value is an int
            if isinstance(type_, str):
                added.type_name = f".timonel.saved_model.{type_}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"timonel.saved_model.{name}")
    )

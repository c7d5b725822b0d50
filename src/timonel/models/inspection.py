"""Read the signatures of a SavedModel without TensorFlow.

``saved_model.pb`` is a protocol buffer. This module declares the few messages that hold signatures,
with the field numbers published by TensorFlow, which cannot change. Listing models thus takes
milliseconds instead of the seconds of importing TensorFlow.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from timonel.errors import ModelError
from timonel.models.schema import Signature, TensorInfo

_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
_STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_INT64 = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
_INT32 = descriptor_pb2.FieldDescriptorProto.TYPE_INT32
_BOOL = descriptor_pb2.FieldDescriptorProto.TYPE_BOOL

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
# tensorflow/core/framework/types.proto
_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    11: "qint8",
    12: "quint8",
    13: "qint32",
    14: "bfloat16",
    15: "qint16",
    16: "quint16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    20: "resource",
    21: "variant",
    22: "uint32",
    23: "uint64",
}
_INIT_OP = "__saved_model_init_op"
_SERVE_TAG = "serve"


def signatures_of(folder: Path) -> dict[str, Signature]:
    """Return the signatures of the SavedModel in ``folder``, by name.

    Raises:
        ModelError: There is no SavedModel, or it is broken.
    """
    meta_graph = _serving_graph(_parse(folder / "saved_model.pb"), folder)
    return {
        entry.key: _signature(entry.value)
        for entry in sorted(meta_graph.signatures, key=lambda entry: entry.key)
        if entry.key != _INIT_OP
    }


def is_saved_model(folder: Path) -> bool:
    """Return whether ``folder`` looks like a SavedModel."""
    return (folder / "saved_model.pb").is_file()


def _parse(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"expected a SavedModel in {path.parent}, got no readable {path.name}",
            hint=f"give a folder that holds {path.name} and variables/",
        ) from error
    try:
        return _message("SavedModel").FromString(content)
    except DecodeError as error:
        raise _broken(path, "its content is cut off or is none") from error


def _serving_graph(saved_model: Any, folder: Path) -> Any:
    for meta_graph in saved_model.meta_graphs:
        if _SERVE_TAG in meta_graph.meta_info.tags:
            return meta_graph
    raise _broken(folder / "saved_model.pb", f"it has no graph tagged '{_SERVE_TAG}'")


def _broken(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"expected a SavedModel in {path.parent}, but {path.name} is broken: {reason}",
        hint="export and publish the model again",
    )


def _signature(value: Any) -> Signature:
    return Signature(
        inputs={entry.key: _tensor(entry.value) for entry in _sorted(value.inputs)},
        outputs={entry.key: _tensor(entry.value) for entry in _sorted(value.outputs)},
        method=value.method_name,
    )


def _sorted(entries: Any) -> list[Any]:
    return sorted(entries, key=lambda entry: str(entry.key))


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
            added.type = _MESSAGE if isinstance(type_, str) else type_  # type: ignore[assignment]  # an enum's value is an int
            if isinstance(type_, str):
                added.type_name = f".timonel.saved_model.{type_}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"timonel.saved_model.{name}")
    )

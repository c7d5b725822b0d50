"""Protos of the Open Inference Protocol.

They are built from a table, without generated code, in a descriptor pool of their own: client
libraries define the same names in another file, which one pool cannot hold twice, and a model's
Python code may import such a library in the server's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "inference"
SERVICE: Final = f"{PACKAGE}.GRPCInferenceService"

_MESSAGES: Mapping[str, tuple[str, ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("bool live = 1",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("bool ready = 1",),
    "ModelReadyRequest": ("string name = 1", "string version = 2"),
    "ModelReadyResponse": ("bool ready = 1",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": (
        "string name = 1",
        "string version = 2",
        "repeated string extensions = 3",
    ),
    "ModelMetadataRequest": ("string name = 1", "string version = 2"),
    "ModelMetadataResponse": (
        "string name = 1",
        "repeated string versions = 2",
        "string platform = 3",
        "repeated ModelMetadataResponse.TensorMetadata inputs = 4",
        "repeated ModelMetadataResponse.TensorMetadata outputs = 5",
    ),
    "ModelMetadataResponse.TensorMetadata": (
        "string name = 1",
        "string datatype = 2",
        "repeated int64 shape = 3",
    ),
    "InferParameter": (
        "oneof bool bool_param = 1",
        "oneof int64 int64_param = 2",
        "oneof string string_param = 3",
        "oneof double double_param = 4",
        "oneof uint64 uint64_param = 5",
    ),
    "InferTensorContents": (
        "repeated bool bool_contents = 1",
        "repeated int32 int_contents = 2",
        "repeated int64 int64_contents = 3",
        "repeated uint32 uint_contents = 4",
        "repeated uint64 uint64_contents = 5",
        "repeated float fp32_contents = 6",
        "repeated double fp64_contents = 7",
        "repeated bytes bytes_contents = 8",
    ),
    "ModelInferRequest": (
        "string model_name = 1",
        "string model_version = 2",
        "string id = 3",
        "map InferParameter parameters = 4",
        "repeated ModelInferRequest.InferInputTensor inputs = 5",
        "repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6",
        "repeated bytes raw_input_contents = 7",
    ),
    "ModelInferRequest.InferInputTensor": (
        "string name = 1",
        "string datatype = 2",
        "repeated int64 shape = 3",
        "map InferParameter parameters = 4",
        "InferTensorContents contents = 5",
    ),
    "ModelInferRequest.InferRequestedOutputTensor": (
        "string name = 1",
        "map InferParameter parameters = 2",
    ),
    "ModelInferResponse": (
        "string model_name = 1",
        "string model_version = 2",
        "string id = 3",
        "map InferParameter parameters = 4",
        "repeated ModelInferResponse.InferOutputTensor outputs = 5",
        "repeated bytes raw_output_contents = 6",
    ),
    "ModelInferResponse.InferOutputTensor": (
        "string name = 1",
        "string datatype = 2",
        "repeated int64 shape = 3",
        "map InferParameter parameters = 4",
        "InferTensorContents contents = 5",
    ),
}
METHODS: Mapping[str, tuple[str, str]] = {
    "ServerLive": ("ServerLiveRequest", "ServerLiveResponse"),
    "ServerReady": ("ServerReadyRequest", "ServerReadyResponse"),
    "ModelReady": ("ModelReadyRequest", "ModelReadyResponse"),
    "ServerMetadata": ("ServerMetadataRequest", "ServerMetadataResponse"),
    "ModelMetadata": ("ModelMetadataRequest", "ModelMetadataResponse"),
    "ModelInfer": ("ModelInferRequest", "ModelInferResponse"),
}
"""Request and response message of each method."""

_Field = descriptor_pb2.FieldDescriptorProto
_ENTRY: Final = "ParametersEntry"


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="open_inference_grpc.proto", package=PACKAGE, syntax="proto3"
    )
    made: dict[str, descriptor_pb2.DescriptorProto] = {}
    for path, fields in _MESSAGES.items():
        parent, _, name = path.rpartition(".")
        made[path] = made[parent].nested_type.add() if parent else file.message_type.add()
        made[path].name = name
        for field in fields:
            _add_field(made[path], path, field)
    service = file.service.add(name=SERVICE.removeprefix(f"{PACKAGE}."))
    for name, (request, response) in METHODS.items():
        service.method.add(
            name=name, input_type=f".{PACKAGE}.{request}", output_type=f".{PACKAGE}.{response}"
        )
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, path: str, text: str) -> None:
    """Add a field in .proto syntax after its label or kind."""
    *label, kind, name, _, number = text.split()
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if label in (["repeated"], ["map"]):
        field.label = _Field.LABEL_REPEATED
    if label == ["oneof"]:
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if label == ["map"]:
        _add_entry(message, kind)
        kind = f"{path}.{_ENTRY}"
    if kind in _MESSAGES or label == ["map"]:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"
    else:
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")


def _add_entry(message: descriptor_pb2.DescriptorProto, kind: str) -> None:
    """Add the entry message of a map with string keys."""
    entry = message.nested_type.add(name=_ENTRY)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    entry.field.add(
        name="value",
        number=2,
        label=_Field.LABEL_OPTIONAL,
        type=_Field.TYPE_MESSAGE,
        type_name=f".{PACKAGE}.{kind}",
    )


POOL: Final = descriptor_pool.DescriptorPool()
"""Descriptor pool with only these protos."""
POOL.AddSerializedFile(_file().SerializeToString())


def message_class(name: str) -> Any:
    """Return the class of the message ``name``."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ModelInferRequest: Final = message_class("ModelInferRequest")
ModelInferResponse: Final = message_class("ModelInferResponse")

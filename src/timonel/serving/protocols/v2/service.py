"""GRPCInferenceService: the Open Inference Protocol over gRPC.

Its protos are built from a table, without generated code, in a descriptor pool of their own: client
libraries define the same names in another file, which one pool cannot hold twice, and a model's
Python code may import such a library in the server's process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from timonel.serving.futures import by_size
from timonel.serving.inference import DataPlane, RequestContext
from timonel.serving.protocols.tfs_grpc.calls import Method, handler
from timonel.serving.protocols.tfs_grpc.server import Service
from timonel.serving.protocols.tfs_rest.response_body import CHUNK
from timonel.serving.protocols.v2.requests import (
    InferRequest,
    InferResult,
    OutputForm,
    Parameters,
    in_time,
    is_ready,
    model_view,
    outputs_in_time,
    refuse_unsupported,
    request_parameters,
    server_view,
    spec_of,
    start,
)
from timonel.serving.protocols.v2.tensors import (
    BYTES,
    checked_shape,
    datatype_of,
    from_raw,
    from_values,
    numpy_of,
    to_raw,
)
from timonel.serving.protos.tensors import packed
from timonel.serving.signature import Array, bytes_of
from timonel.serving.status import invalid_argument
from timonel.serving.telemetry.monitor import Monitor
from timonel.wire import tag, varint

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


_FIELDS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""Field for typed values by data type.

16-bit floats have raw contents only.
"""
_FLOATS: Final = frozenset({"fp32_contents", "fp64_contents"})


_RAW: Final = tag(ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number)
_PROBES = frozenset({"ServerLive", "ServerReady"})


class InferenceService:
    """The methods of GRPCInferenceService; all raise `StatusError`.

    Args:
        plane: Data plane that runs the models.
        pool: Executor for decoding large requests and encoding large responses.
        is_draining: Whether the server is stopping.
        monitor: Records each request.
    """

    def __init__(
        self,
        plane: DataPlane,
        pool: Executor,
        is_draining: Callable[[], bool] = lambda: False,
        monitor: Monitor | None = None,
    ) -> None:
        self._plane = plane
        self._pool = pool
        self._is_draining = is_draining
        self._monitor = monitor

    def described(self) -> Service:
        """Return the service for a `GrpcServer`."""
        answers: dict[str, Method] = {
            "ServerLive": self.live,
            "ServerReady": self.ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.infer,
        }
        handlers = {
            name: handler(
                answer,
                name,
                message_class(METHODS[name][0]),
                self._pool,
                # Probes are so frequent that they would dominate the monitored requests.
                None if name in _PROBES else self._monitor,
            )
            for name, answer in answers.items()
        }
        return Service(SERVICE, grpc.method_handlers_generic_handler(SERVICE, handlers), POOL)

    async def live(self, request: Any, context: RequestContext) -> bytes:  # noqa: ARG002
        """Answer the liveness probe."""
        return _message("ServerLiveResponse", live=True)

    async def ready(self, request: Any, context: RequestContext) -> bytes:  # noqa: ARG002
        """Answer the readiness probe: whether all models can answer."""
        all_ready = not (self._plane.unready() or self._is_draining())
        return _message("ServerReadyResponse", ready=all_ready)

    async def model_ready(self, request: Any, context: RequestContext) -> bytes:  # noqa: ARG002
        """Return whether a version can answer."""
        spec = spec_of(request.name, request.version)
        return _message("ModelReadyResponse", ready=is_ready(self._plane, spec))

    async def server_metadata(
        self,
        request: Any,  # noqa: ARG002 - a method
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Return the metadata of the server."""
        return _message("ServerMetadataResponse", **server_view())

    async def model_metadata(
        self,
        request: Any,
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Return the metadata of a version."""
        spec = spec_of(request.name, request.version)
        return _message("ModelMetadataResponse", **model_view(self._plane, spec))

    async def infer(self, request: Any, context: RequestContext) -> bytes:
        """Run a signature."""
        decoded = await by_size(self._pool, request.ByteSize(), decode, request)
        context = in_time(context, decoded)
        with self._plane.call(spec_of(request.model_name, request.model_version), context) as call:
            outputs = await outputs_in_time(start(call, decoded), context)
            result = InferResult(call.name, call.version, outputs)
        size = sum(map(bytes_of, outputs.values()))
        return await by_size(self._pool, size, encode, decoded, result)


def _message(name: str, /, **fields: Any) -> bytes:
    encoded: bytes = message_class(name)(**fields).SerializeToString()
    return encoded


def decode(message: Any) -> InferRequest:
    """Decode a ModelInferRequest.

    Raises:
        StatusError: The request is inconsistent or requests a missing feature.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise invalid_argument(
            f"expected raw_input_contents for each of {len(message.inputs)} inputs, got {len(raw)}"
        )
    inputs: dict[str, Array] = {}
    for tensor, content in itertools.zip_longest(message.inputs, raw):
        if tensor.name in inputs:
            raise invalid_argument(f"Input {tensor.name} occurs more than once.")
        inputs[tensor.name] = _tensor(tensor, content)
    outputs: dict[str, OutputForm] = {}
    for output in message.outputs:
        if output.name in outputs:
            raise invalid_argument(f"Output {output.name} occurs more than once.")
        refuse_unsupported(_parameters(output.parameters), f"output {output.name}")
        outputs[output.name] = OutputForm()
    return InferRequest(
        inputs,
        outputs,
        message.id or None,
        request_parameters(_parameters(message.parameters)),
        is_raw=bool(raw),
    )


def encode(request: InferRequest, result: InferResult) -> bytes:
    """Encode a serialized ModelInferResponse.

    Its contents are raw if those of the request were, or if an output has no typed form.

    Raises:
        StatusError: The protocol has no data type for an output.
    """
    message = ModelInferResponse(model_name=result.model, model_version=str(result.version))
    message.id = request.request_id or ""
    datatypes = {name: datatype_of(name, array) for name, array in result.outputs.items()}
    is_raw = request.is_raw or not set(datatypes.values()) <= _FIELDS.keys()
    for name, array in result.outputs.items():
        tensor = message.outputs.add(name=name, datatype=datatypes[name], shape=array.shape)
        if not is_raw:
            values, flat = getattr(tensor.contents, _FIELDS[datatypes[name]]), array.reshape(-1)
            for start in range(0, flat.size, CHUNK):
                values.extend(flat[start : start + CHUNK].tolist())
    parts: list[bytes] = [message.SerializeToString()]
    # Appended to the serialized message: this way, large tensors are copied only once.
    for array in result.outputs.values() if is_raw else ():
        content = to_raw(array)
        parts += (_RAW, varint(len(content)), content)
    return b"".join(parts)


def _tensor(tensor: Any, raw: bytes | None) -> Array:
    name, datatype = tensor.name, tensor.datatype
    shape = checked_shape(name, tensor.shape)
    refuse_unsupported(_parameters(tensor.parameters), f"input {name}")
    if raw is not None:
        if tensor.HasField("contents") and tensor.contents.ByteSize():
            raise invalid_argument(
                f"Input {name} has both contents and raw_input_contents. Send only one of them."
            )
        return from_raw(name, datatype, shape, memoryview(raw))
    numpy_of(name, datatype)
    field = _FIELDS.get(datatype)
    if field is None:
        raise invalid_argument(f"Send input {name} of type {datatype} in raw_input_contents.")
    for other, _ in tensor.contents.ListFields():
        if other.name != field:
            raise invalid_argument(
                f"expected the contents of input {name}, {datatype}, in {field}, got {other.name}"
            )
    values = getattr(tensor.contents, field)
    if field in _FLOATS:
        return _from_floats(name, datatype, shape, tensor.contents, field, len(values))
    return from_values(name, datatype, shape, list(values))


def _from_floats(
    name: str, datatype: str, shape: tuple[int, ...], contents: Any, field: str, count: int
) -> Array:
    """Read floats from the serialized field.

    A Python list would take ten times the memory.
    """
    if count != math.prod(shape):
        raise invalid_argument(
            f"expected the data of input {name} to be {math.prod(shape)} values, flat, got {count}"
        )
    number = contents.DESCRIPTOR.fields_by_name[field].number
    raw = packed(contents.SerializeToString(), number) if count else b""
    return np.frombuffer(raw, numpy_of(name, datatype)).reshape(shape)


def _parameters(messages: Any) -> Parameters:
    """Return the values of a map of InferParameters."""
    found = {}
    for name, parameter in messages.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            found[name] = getattr(parameter, choice)
    return found

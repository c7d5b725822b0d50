"""GRPCInferenceService: the Open Inference Protocol over gRPC."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc

from timonel.serving.codec.writer import CHUNK
from timonel.serving.inference.flow import Call, Flow, Outputs
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.tfs_grpc.calls import MessageCodec, computing, reading
from timonel.serving.protocols.tfs_grpc.server import Service
from timonel.serving.protocols.v2.requests import (
    PROBES,
    InferCodec,
    InferRequest,
    OutputForm,
    Parameters,
    View,
    refuse_unsupported,
    request_parameters,
    spec_of,
    views,
)
from timonel.serving.protocols.v2.tensors import (
    BYTES,
    checked_shape,
    datatype_of,
    from_raw,
    in_range,
    numpy_of,
    to_raw,
)
from timonel.serving.protos.described import class_of, pool_of
from timonel.serving.protos.tensors import numbers_in
from timonel.serving.signature import Array, string_array
from timonel.serving.status import invalid_argument
from timonel.wire import tag, varint

SERVICE: Final = "inference.GRPCInferenceService"
POOL: Final = pool_of("open_inference_grpc")
"""Descriptor pool with the protocol's messages and service."""


def message_class(name: str) -> Any:
    """Return the class of the message ``name``."""
    return class_of(POOL, f"inference.{name}")


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

_RAW: Final = tag(ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number)


def inference_service(flow: Flow, is_draining: Callable[[], bool] = lambda: False) -> Service:
    """Return GRPCInferenceService for a `GrpcServer`."""
    handlers = {
        name: reading(
            flow,
            name,
            message_class(f"{name}Request"),
            partial(_viewed, message_class(f"{name}Response"), view),
            is_observed=name not in PROBES,
        )
        for name, view in views(flow.catalogue, is_draining).items()
    }
    handlers["ModelInfer"] = computing(flow, _Infer)
    return Service(SERVICE, grpc.method_handlers_generic_handler(SERVICE, handlers), POOL)


def _viewed(response_type: Any, view: View, request: Any) -> bytes:
    spec = spec_of(getattr(request, "name", ""), getattr(request, "version", ""))
    encoded: bytes = response_type(**view(spec)).SerializeToString()
    return encoded


class _Infer(MessageCodec, InferCodec[bytes]):
    api = "ModelInfer"
    request_type = ModelInferRequest

    def decode(self) -> tuple[ModelSpec, InferRequest]:
        message = self.parsed()
        self.model = message.model_name
        return spec_of(message.model_name, message.model_version), decode(message)

    def encode(self, call: Call, outputs: Sequence[Outputs]) -> bytes:
        return encode(self.request, call.name, call.version, outputs[0])


def decode(message: Any) -> InferRequest:
    """Decode a ModelInferRequest."""
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
        _parameters(output.parameters, f"output {output.name}")
        outputs[output.name] = OutputForm()
    return InferRequest(
        inputs,
        outputs,
        message.id or None,
        request_parameters(_parameters(message.parameters, "the request")),
        is_raw=bool(raw),
    )


def encode(request: InferRequest, model: str, version: int, outputs: Outputs) -> bytes:
    """Encode a serialized ModelInferResponse.

    Its contents are raw if those of the request were, or if an output has no typed form.
    """
    message = ModelInferResponse(model_name=model, model_version=str(version))
    message.id = request.request_id or ""
    datatypes = {name: datatype_of(name, array) for name, array in outputs.items()}
    is_raw = request.is_raw or not set(datatypes.values()) <= _FIELDS.keys()
    for name, array in outputs.items():
        tensor = message.outputs.add(name=name, datatype=datatypes[name], shape=array.shape)
        if not is_raw:
            values, flat = getattr(tensor.contents, _FIELDS[datatypes[name]]), array.reshape(-1)
            for start in range(0, flat.size, CHUNK):
                values.extend(flat[start : start + CHUNK].tolist())
    parts: list[bytes] = [message.SerializeToString()]
    # Appended to the serialized message: this way, large tensors are copied only once.
    for array in outputs.values() if is_raw else ():
        content = to_raw(array)
        parts += (_RAW, varint(len(content)), content)
    return b"".join(parts)


def _tensor(tensor: Any, raw: bytes | None) -> Array:
    name, datatype = tensor.name, tensor.datatype
    shape = checked_shape(name, tensor.shape)
    _parameters(tensor.parameters, f"input {name}")
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
    if len(values) != math.prod(shape):
        raise invalid_argument(
            f"expected the data of input {name} to be {math.prod(shape)} values, flat, "
            f"got {len(values)}"
        )
    if datatype == BYTES:
        return string_array(values[:]).reshape(shape)
    return in_range(name, datatype, numbers_in(tensor.contents, field)).reshape(shape)


def _parameters(messages: Any, owner: str) -> Parameters:
    """Return the values of a map of InferParameters; see `refuse_unsupported`."""
    found = {}
    for name, parameter in messages.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            found[name] = getattr(parameter, choice)
    refuse_unsupported(found, owner)
    return found

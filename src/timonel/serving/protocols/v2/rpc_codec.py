"""Decode and encode inference over gRPC. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from timonel.serving.protocols.tfs_rest.response_body import CHUNK
from timonel.serving.protocols.v2.messages import ModelInferResponse
from timonel.serving.protocols.v2.request import (
    InferRequest,
    InferResult,
    OutputForm,
    Parameters,
    refuse_unsupported,
    request_parameters,
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
from timonel.serving.signature import Array
from timonel.serving.status import invalid_argument
from timonel.wire import tag, varint

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
            raise invalid_argument(f"expected input {tensor.name} once")
        inputs[tensor.name] = _tensor(tensor, content)
    outputs: dict[str, OutputForm] = {}
    for output in message.outputs:
        if output.name in outputs:
            raise invalid_argument(f"expected output {output.name} once")
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
                f"expected input {name} to have contents or raw_input_contents, got both"
            )
        return from_raw(name, datatype, shape, memoryview(raw))
    numpy_of(name, datatype)
    field = _FIELDS.get(datatype)
    if field is None:
        raise invalid_argument(f"expected raw_input_contents for input {name} of {datatype}")
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

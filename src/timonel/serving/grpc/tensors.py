"""TensorProtos to arrays and back.

TensorFlow's own functions for this build Python lists and write numbers as ``tensor_content``,
which TensorFlow Serving's clients do not expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorflow.core.framework import tensor_pb2, types_pb2

from timonel.serving.runtimes.base import DTYPE_NAMES, NUMPY_TYPES, STRING, Array
from timonel.serving.status import Code, StatusError, invalid_argument

_FIELDS: Mapping[str, str] = {
    "DT_FLOAT": "float_val",
    "DT_DOUBLE": "double_val",
    "DT_HALF": "half_val",
    "DT_BFLOAT16": "half_val",
    "DT_INT8": "int_val",
    "DT_INT16": "int_val",
    "DT_INT32": "int_val",
    "DT_UINT8": "int_val",
    "DT_UINT16": "int_val",
    "DT_INT64": "int64_val",
    "DT_UINT32": "uint32_val",
    "DT_UINT64": "uint64_val",
    "DT_BOOL": "bool_val",
    "DT_COMPLEX64": "scomplex_val",
    "DT_COMPLEX128": "dcomplex_val",
    STRING: "string_val",
}
# Half floats travel as their bits, complex numbers as pairs.
_WIRE_TYPES: Mapping[str, Any] = {
    "DT_HALF": np.uint16,
    "DT_BFLOAT16": np.uint16,
    "DT_COMPLEX64": np.float32,
    "DT_COMPLEX128": np.float64,
}


def from_proto(alias: str, proto: Any) -> Array:
    """Return the array a TensorProto holds.

    Raises:
        StatusError: The proto contradicts itself; the message names the input ``alias``.
    """
    try:
        dtype = types_pb2.DataType.Name(proto.dtype)
        shape = _shape(proto.tensor_shape)
        flat = _flat(proto, dtype, int(np.prod(shape, dtype=np.int64)))
        return flat.reshape(shape)
    except (KeyError, ValueError, OverflowError) as error:
        raise invalid_argument(f"tensor parsing error: {alias}") from error


def to_proto(array: Array) -> Any:
    """Return an array as a TensorProto with typed fields.

    Raises:
        StatusError: The dtype has no proto form.
    """
    dtype = DTYPE_NAMES.get(array.dtype)
    if dtype is None:
        raise StatusError(Code.UNIMPLEMENTED, f"expected a tensor type, got {array.dtype}")
    proto = tensor_pb2.TensorProto(dtype=types_pb2.DataType.Value(dtype))
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    flat = np.ascontiguousarray(array).reshape(-1)
    wire = _WIRE_TYPES.get(dtype)
    values = (flat if wire is None else flat.view(wire)).tolist()
    getattr(proto, _FIELDS[dtype]).extend(values)
    return proto


def _shape(proto: Any) -> tuple[int, ...]:
    shape = tuple(dim.size for dim in proto.dim)
    if proto.unknown_rank or any(size < 0 for size in shape):
        raise ValueError("expected a known shape")
    return shape


def _flat(proto: Any, dtype: str, size: int) -> Array:
    if proto.tensor_content:
        if dtype == STRING:
            raise ValueError("expected strings in string_val")
        return np.frombuffer(proto.tensor_content, NUMPY_TYPES[dtype])
    values = getattr(proto, _FIELDS[dtype])
    if dtype == STRING:
        flat = np.empty(len(values), dtype=object)
        flat[:] = list(values)
    else:
        wire = _WIRE_TYPES.get(dtype)
        flat = np.array(values, dtype=wire or NUMPY_TYPES[dtype])
        flat = flat if wire is None else flat.view(NUMPY_TYPES[dtype])
    return _filled(flat, size)


def _filled(flat: Array, size: int) -> Array:
    """Repeat the last value up to ``size``, as the proto's definition says."""
    if len(flat) >= size:
        return flat
    if not len(flat):
        empty = b"" if flat.dtype == object else 0
        return np.full(size, empty, dtype=flat.dtype)
    return np.concatenate([flat, np.repeat(flat[-1:], size - len(flat))])

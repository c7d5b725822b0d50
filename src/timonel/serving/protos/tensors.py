"""Convert between TensorProtos and arrays like TensorFlow's C++, without TensorFlow. Pure.

TensorFlow's Python functions for this build lists of Python numbers, reject protos that its C++
accepts, and write numbers as ``tensor_content``, which clients of TensorFlow Serving do not expect.
Here floats are copied directly between the proto's bytes and the array; integers, which have a
variable-length encoding, go through protobuf.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from timonel.serving.protos.messages import tensor_pb2, tensor_shape_pb2, types_pb2
from timonel.serving.signature import DTYPE_NAMES, NUMPY_TYPES, STRING, Array, string_array
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.wire import read_varint, tag, varint

MAX_BYTES = 2**31
"""Size limit of a decoded array: that of a message.

A proto of ten bytes may request any size, as its last value is repeated to fill its shape.
"""

MAX_REPEATED_BYTES = 2**23
"""Size limit of an array filled with its last value.

Without it, a request of sixty bytes could cost minutes of a model's time.
"""

MAX_STRINGS = 500_000
"""Limit of strings in a tensor, each a Python object."""

MAX_DIMENSIONS = 254
"""TensorFlow's own limit."""

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
# NumPy types of numbers by their type in the proto.
_WIRE_TYPES: Mapping[int, np.dtype[Any]] = {
    FieldDescriptor.TYPE_BOOL: np.dtype(np.bool_),
    FieldDescriptor.TYPE_INT32: np.dtype(np.int32),
    FieldDescriptor.TYPE_INT64: np.dtype(np.int64),
    FieldDescriptor.TYPE_UINT32: np.dtype(np.uint32),
    FieldDescriptor.TYPE_UINT64: np.dtype(np.uint64),
    FieldDescriptor.TYPE_FLOAT: np.dtype("<f4"),
    FieldDescriptor.TYPE_DOUBLE: np.dtype("<f8"),
}
_DESCRIPTORS = tensor_pb2.TensorProto.DESCRIPTOR.fields_by_name
# Fields with the same bytes in memory and on the wire.
_FIXED = frozenset({"float_val", "double_val", "scomplex_val", "dcomplex_val", "bool_val"})
# Fixed-width wire types, which occur only in unknown fields of a TensorProto.
_WIDTHS = {1: 8, 5: 4}


def from_proto(alias: str, proto: Any) -> Array:
    """Return the array in a TensorProto; it may be read-only.

    Values beyond the shape are dropped; missing ones are filled with the last value.
    """
    try:
        return _decode(proto)
    except (KeyError, ValueError, OverflowError, IndexError) as error:
        raise invalid_argument(f"tensor parsing error: {alias}") from error


def to_proto(array: Array) -> Any:
    """Convert an array to a TensorProto with typed fields."""
    return tensor_pb2.TensorProto.FromString(encode(array))


def encode(array: Array, *, as_content: bool = False) -> bytes:
    """Convert an array to a serialized TensorProto.

    Args:
        array: The array; object arrays hold bytes.
        as_content: Whether to write values to ``tensor_content`` instead of typed fields.
    """
    dtype = DTYPE_NAMES.get(array.dtype)
    if dtype is None:
        raise StatusError(Code.UNIMPLEMENTED, f"expected a tensor type, got {array.dtype}")
    head = _head(dtype, array.shape)
    if not array.size:
        return head
    flat = np.ascontiguousarray(array).reshape(-1)
    if as_content:
        return head + _chunk("tensor_content", _content(flat, dtype))
    field = _FIELDS[dtype]
    if field in _FIXED:
        return head + _chunk(field, flat.tobytes())
    values = (flat.view(np.uint16) if field == "half_val" else flat).tolist()
    encoded: bytes = tensor_pb2.TensorProto(**{field: values}).SerializeToString()
    return head + encoded


@functools.lru_cache(maxsize=1024)
def _head(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the serialized proto of an array without its values."""
    sizes = tensor_shape_pb2.TensorShapeProto()
    for size in shape:
        sizes.dim.add(size=size)
    head = tensor_pb2.TensorProto(dtype=types_pb2.DataType.Value(dtype), tensor_shape=sizes)
    encoded: bytes = head.SerializeToString()
    return encoded


def _chunk(field: str, content: bytes) -> bytes:
    return b"".join((tag(_DESCRIPTORS[field].number), varint(len(content)), content))


def _content(flat: Array, dtype: str) -> bytes:
    if dtype != STRING:
        return flat.tobytes()
    texts: list[bytes] = flat.tolist()
    return b"".join([varint(len(text)) for text in texts] + texts)


def _decode(proto: Any) -> Array:
    dtype = types_pb2.DataType.Name(proto.dtype)
    shape = _shape(proto.tensor_shape)
    size = math.prod(shape)
    if size * NUMPY_TYPES[dtype].itemsize > MAX_BYTES:
        raise ValueError("expected an array that fits into a message")
    if dtype == STRING and size > MAX_STRINGS:
        raise ValueError("expected fewer strings")
    content = proto.tensor_content if size else b""  # each access copies it
    if content:
        return _from_content(content, dtype, size).reshape(shape)
    return _from_values(proto, dtype, size).reshape(shape)


def _shape(proto: Any) -> tuple[int, ...]:
    if len(proto.dim) > MAX_DIMENSIONS:
        raise ValueError("expected a shape of TensorFlow's")
    shape = tuple(dim.size for dim in proto.dim)
    if proto.unknown_rank or any(size < 0 for size in shape):
        raise ValueError("expected a known shape")
    return shape


def _from_content(content: bytes, dtype: str, size: int) -> Array:
    if dtype == STRING:
        return string_array(_split(content, size))
    flat = np.frombuffer(content, NUMPY_TYPES[dtype])
    if len(flat) != size:
        raise ValueError(f"expected {size} values, got {len(flat)}")
    return flat


def _split(content: bytes, size: int) -> list[bytes]:
    """Split a ``tensor_content`` of strings: all lengths, then all strings."""
    if size > len(content):
        raise ValueError("expected a length for each string")
    lengths, position = [], 0
    for _ in range(size):
        length, position = read_varint(content, position)
        lengths.append(length)
    if position + sum(lengths) != len(content):
        raise ValueError("expected as many bytes as the lengths say")
    texts = []
    for length in lengths:
        texts.append(content[position : position + length])
        position += length
    return texts


def _from_values(proto: Any, dtype: str, size: int) -> Array:
    if dtype == STRING:
        return _filled(string_array(proto.string_val[:size]), size)
    return _filled(_in_memory(numbers_in(proto, _FIELDS[dtype]), dtype), size)


def numbers_in(message: Any, field: str) -> Array:
    """Return the numbers of a repeated field; the array may be read-only."""
    values, descriptor = getattr(message, field), message.DESCRIPTOR.fields_by_name[field]
    wire = _WIRE_TYPES[descriptor.type]
    if wire.kind in "bf" and values:
        return np.frombuffer(_packed(message.SerializeToString(), descriptor.number), wire)
    return np.fromiter(values, wire, len(values))


def _in_memory(flat: Array, dtype: str) -> Array:
    target = NUMPY_TYPES[dtype]
    if dtype in {"DT_HALF", "DT_BFLOAT16"}:
        return flat.astype(np.uint16).view(target)
    if target.kind == "c":
        return flat[: len(flat) // 2 * 2].view(target)
    # Narrow integers keep their lowest bits, as in C++.
    return flat.astype(target, copy=False)


def _packed(raw: bytes, number: int) -> memoryview:
    """Return the bytes of a serialized packed field; raise ValueError if it is missing."""
    wanted = number << 3 | 2
    position = 0
    while position < len(raw):
        tag, position = read_varint(raw, position)
        kind = tag & 7
        if kind == 0:
            _, position = read_varint(raw, position)
        elif kind == 2:
            length, position = read_varint(raw, position)
            if tag == wanted:
                return memoryview(raw)[position : position + length]
            position += length
        elif kind in _WIDTHS:
            position += _WIDTHS[kind]
        else:
            break
    raise ValueError(f"expected the field {number}")


def _filled(flat: Array, size: int) -> Array:
    """Truncate the values to ``size``, or repeat the last one."""
    if len(flat) >= size:
        return flat[:size]
    width = len(flat[-1]) if flat.dtype == object and len(flat) else flat.itemsize
    if size * max(width, flat.itemsize) > MAX_REPEATED_BYTES:
        raise ValueError("expected a value for each element of so large a tensor")
    if not len(flat):
        empty = np.zeros(size, flat.dtype)
        if flat.dtype == object:
            empty[:] = b""
        return empty
    filled = np.empty(size, flat.dtype)
    filled[: len(flat)] = flat
    filled[len(flat) :] = flat[-1]
    return filled

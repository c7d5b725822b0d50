"""TensorProtos to arrays and back, as TensorFlow's C++ does it, and without TensorFlow. Pure.

TensorFlow's Python functions for this build lists of Python numbers, refuse what its C++ takes,
and write numbers as ``tensor_content``, which TensorFlow Serving's clients do not expect. Here
floats go straight between the proto's bytes and the array; whole numbers, which travel in a
varying number of bytes, go through protobuf.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from timonel.serving.protos.messages import tensor_pb2, tensor_shape_pb2, types_pb2
from timonel.serving.signature import DTYPE_NAMES, NUMPY_TYPES, STRING, Array
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.wire import read_varint, tag, varint

MAX_BYTES = 2**31
"""The largest array that a proto may unfold to: as much as fits into a message.

A proto of ten bytes may ask for any size, as its last value is repeated up to its shape.
"""

MAX_REPEATED_BYTES = 2**23
"""The largest array whose last values are not in the proto but stand for those that are missing:
sixty bytes could ask for minutes of a model's time."""

MAX_STRINGS = 500_000
"""Each is an object of Python's, however short."""

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
_NUMBERS = {
    name: tensor_pb2.TensorProto.DESCRIPTOR.fields_by_name[name].number
    for name in set(_FIELDS.values()) | {"tensor_content"}
}
# What the values of a field are in memory: bits of half floats, parts of complex numbers.
_WIRE_TYPES: Mapping[str, np.dtype[Any]] = {
    "half_val": np.dtype(np.int32),
    "int_val": np.dtype(np.int32),
    "int64_val": np.dtype(np.int64),
    "uint32_val": np.dtype(np.uint32),
    "uint64_val": np.dtype(np.uint64),
    "bool_val": np.dtype(np.bool_),
    "float_val": np.dtype("<f4"),
    "scomplex_val": np.dtype("<f4"),
    "double_val": np.dtype("<f8"),
    "dcomplex_val": np.dtype("<f8"),
}
# Fields whose bytes on the wire are those in memory.
_FIXED = frozenset({"float_val", "double_val", "scomplex_val", "dcomplex_val", "bool_val"})
# Fields of these kinds only occur among those that a TensorProto does not know.
_WIDTHS = {1: 8, 5: 4}
_COPIED_AT_ONCE = 16
_NAMES: Mapping[int, str] = {types_pb2.DataType.Value(name): name for name in _FIELDS}
_FEW = 32
"""Below so many values, taking them one by one is faster."""


def from_proto(alias: str, proto: Any) -> Array:
    """Return the array a TensorProto holds; it may be read-only.

    Values beyond the shape are dropped, and the last one stands for those that are missing.

    Raises:
        StatusError: The proto contradicts itself; the message names the input ``alias``.
    """
    try:
        return _decode(proto)
    except (KeyError, ValueError, OverflowError, IndexError) as error:
        raise invalid_argument(f"tensor parsing error: {alias}") from error


def effort(proto: Any) -> int:
    """Return how many bytes of typed values take as long to read as a TensorProto.

    What the array takes counts a little, too: the numbers of a ``tensor_content`` are copied once,
    and a last value may be repeated up to any shape.
    """
    name = _NAMES.get(proto.dtype, STRING)
    # Not the size of any proto of numbers: protobuf would serialize it to tell.
    if name == STRING:
        size: int = proto.ByteSize()
        return size
    field = _FIELDS[name]
    typed = len(getattr(proto, field)) * _WIRE_TYPES[field].itemsize
    # The product of more sizes could have millions of digits.
    count: int = math.prod([dim.size for dim in proto.tensor_shape.dim[:MAX_DIMENSIONS]])
    return typed + count * NUMPY_TYPES[name].itemsize // _COPIED_AT_ONCE


def to_proto(array: Array) -> Any:
    """Return an array as a TensorProto with typed fields.

    Raises:
        StatusError: The dtype has no proto form.
    """
    return tensor_pb2.TensorProto.FromString(encode(array))


def encode(array: Array, *, as_content: bool = False) -> bytes:
    """Return an array as a serialized TensorProto.

    Args:
        array: What to encode; object arrays hold bytes.
        as_content: Whether values go into ``tensor_content``, or else into typed fields.

    Raises:
        StatusError: The dtype has no proto form.
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
        return head + _chunk(field, flat.view(_WIRE_TYPES[field]).tobytes())
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
    return b"".join((tag(_NUMBERS[field]), varint(len(content)), content))


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
    content = proto.tensor_content if size else b""  # each look copies it
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
        return _texts(_split(content, size))
    flat = np.frombuffer(content, NUMPY_TYPES[dtype])
    if len(flat) != size:
        raise ValueError(f"expected {size} values, got {len(flat)}")
    return flat


def _split(content: bytes, size: int) -> list[bytes]:
    """Return the strings of a ``tensor_content``: all their lengths, then all of them."""
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
    field = _FIELDS[dtype]
    values = getattr(proto, field)
    if dtype == STRING:
        return _filled(_texts(values[:size]), size)
    wire = _WIRE_TYPES[field]
    count = len(values)
    if field in _FIXED and count > _FEW:
        flat = np.frombuffer(packed(proto.SerializeToString(), _NUMBERS[field]), wire)
    else:
        flat = np.fromiter(values, wire, count)
    return _filled(_in_memory(flat, dtype), size)


def _in_memory(flat: Array, dtype: str) -> Array:
    target = NUMPY_TYPES[dtype]
    if dtype in {"DT_HALF", "DT_BFLOAT16"}:
        return flat.astype(np.uint16).view(target)
    if target.kind == "c":
        return flat[: len(flat) // 2 * 2].view(target)
    # Narrow integers keep their lowest bits, as in C++.
    return flat.astype(target, copy=False)


def packed(raw: bytes, number: int) -> memoryview:
    """Return the bytes of a packed field of what protobuf has serialized, by the field's number.

    Raises:
        ValueError: It has no such field.
    """
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


def _texts(values: Any) -> Array:
    flat = np.empty(len(values), dtype=object)
    flat[:] = values
    return flat


def _filled(flat: Array, size: int) -> Array:
    """Cut the values to ``size``, or repeat the last one, as the proto's definition says."""
    if len(flat) >= size:
        return flat[:size]
    if size * flat.itemsize > MAX_REPEATED_BYTES:
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

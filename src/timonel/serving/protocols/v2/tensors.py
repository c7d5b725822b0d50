"""Tensors of the Open Inference Protocol: types, shapes, raw and JSON data. Pure.

Raw contents are in row-major order and little-endian. Each BYTES element follows its length in four
bytes.

A number from JSON or a typed proto beyond the range of its data type is rejected, not truncated.
Only numbers for floating-point types are rounded.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from timonel.serving.codec.jsontext import echo, type_name
from timonel.serving.codec.number_arrays import NumberArray
from timonel.serving.codec.tensors import cast_integers, round_floats
from timonel.serving.protos.tensors import MAX_STRINGS
from timonel.serving.signature import (
    DTYPE_NAMES,
    NUMPY_TYPES,
    STRING,
    Array,
    Signature,
    string_array,
)
from timonel.serving.status import StatusError, invalid_argument

BYTES: Final = "BYTES"
_DATATYPES: Mapping[str, str] = {
    "DT_BOOL": "BOOL",
    "DT_UINT8": "UINT8",
    "DT_UINT16": "UINT16",
    "DT_UINT32": "UINT32",
    "DT_UINT64": "UINT64",
    "DT_INT8": "INT8",
    "DT_INT16": "INT16",
    "DT_INT32": "INT32",
    "DT_INT64": "INT64",
    "DT_HALF": "FP16",
    "DT_BFLOAT16": "BF16",
    "DT_FLOAT": "FP32",
    "DT_DOUBLE": "FP64",
    STRING: BYTES,
}
NUMPY_OF: Mapping[str, np.dtype[Any]] = {
    datatype: NUMPY_TYPES[dtype] for dtype, datatype in _DATATYPES.items()
}
"""numpy dtype by protocol data type; BYTES are objects."""

_PREFIX: Final = 4
_MAX_RANK: Final = 64
"""numpy's limit."""
_MAX_ELEMENTS: Final = 2**48
"""More than any memory holds.

numpy rejects larger shapes even if one size is zero.
"""
_FLOATS: Final = frozenset({"FP16", "BF16", "FP32", "FP64"})
_BITS: Final = (0, 1)


def datatype_named(dtype: str) -> str:
    """Return the protocol's name of a data type, else TensorFlow's."""
    return _DATATYPES.get(dtype, dtype.removeprefix("DT_"))


def datatype_of(name: str, array: Array) -> str:
    """Return the data type of the output ``name``."""
    dtype = DTYPE_NAMES.get(array.dtype, str(array.dtype))
    if dtype not in _DATATYPES:
        raise invalid_argument(
            f"The protocol has no data type for output {name}, which is {datatype_named(dtype)}."
        )
    return _DATATYPES[dtype]


def numpy_of(name: str, datatype: str) -> np.dtype[Any]:
    """Return the numpy dtype of the input ``name``."""
    found = NUMPY_OF.get(datatype)
    if found is None:
        raise invalid_argument(
            f"expected the datatype of input {name} to be one of {', '.join(NUMPY_OF)}, "
            f"got {datatype!r}"
        )
    return found


def checked_shape(name: str, shape: Iterable[Any]) -> tuple[int, ...]:
    """Validate the shape of the input ``name``."""
    sizes = tuple(shape)
    if len(sizes) > _MAX_RANK:
        raise invalid_argument(
            f"expected input {name} to have at most {_MAX_RANK} dimensions, got {len(sizes)}"
        )
    for size in sizes:
        if type(size) is not int or size < 0:
            raise invalid_argument(
                f"The shape of input {name} must have integers of at least 0, "
                f"got {reprlib.repr(size)}"
            )
    if math.prod(max(size, 1) for size in sizes) > _MAX_ELEMENTS:
        raise invalid_argument(f"The shape of input {name} is too large.")
    return sizes


def from_raw(name: str, datatype: str, shape: Sequence[int], content: memoryview) -> Array:
    """Decode raw contents. The result may be a read-only view of ``content``."""
    target = numpy_of(name, datatype)
    count = math.prod(shape)
    if datatype == BYTES:
        if count > MAX_STRINGS:
            raise invalid_argument(
                f"expected input {name} to have at most {MAX_STRINGS} strings, got {count}"
            )
        return string_array(_split(name, content, count)).reshape(shape)
    if count * target.itemsize != len(content):
        raise invalid_argument(
            f"expected {count * target.itemsize} bytes for input {name}, "
            f"{datatype} {list(shape)}, got {len(content)}"
        )
    if datatype == "BOOL":
        # All bytes but 0 are true, and numpy's bool must be 0 or 1 in memory.
        return np.frombuffer(content, np.uint8).astype(np.bool_).reshape(shape)
    flat = np.frombuffer(content, target)
    if not flat.flags.aligned:
        flat = flat.copy()
    return flat.reshape(shape)


def to_raw(array: Array) -> bytes:
    """Encode a tensor as raw contents."""
    if array.dtype != object:
        return array.tobytes()
    texts: list[bytes] = array.reshape(-1).tolist()
    lengths = (len(text).to_bytes(_PREFIX, "little") for text in texts)
    return b"".join(itertools.chain.from_iterable(zip(lengths, texts, strict=True)))


def from_values(
    name: str, datatype: str, shape: Sequence[int], data: Any, *, in_base64: bool = False
) -> Array:
    """Decode a list of values."""
    numpy_of(name, datatype)
    if not isinstance(data, list):
        raise invalid_argument(
            f"expected the data of input {name} to be a list, got {type_name(data)}"
        )
    flat = _flat(name, shape, data)
    if datatype == BYTES:
        texts = [_bytes(name, value, in_base64=in_base64) for value in flat]
        return string_array(texts).reshape(shape)
    if datatype == "BOOL":
        return _booleans(name, flat).reshape(shape)
    return _numbers(name, datatype, flat).reshape(shape)


def from_numbers(datatype: str, shape: Sequence[int], numbers: NumberArray) -> Array | None:
    """Return the result of `from_values`, or None if only that can decide."""
    given = numbers.values.shape
    if given not in {(math.prod(shape),), tuple(shape)} or datatype in {BYTES, "BOOL"}:
        return None
    target = numpy_of("", datatype)
    if datatype in _FLOATS:
        return round_floats(numbers.values, target).reshape(shape)
    if not numbers.whole:
        return None
    array = cast_integers(numbers.values, target, _bounds(datatype))
    return None if array is None else array.reshape(shape)


def in_range(name: str, datatype: str, numbers: Array) -> Array:
    """Convert numbers of a wider type, which hold values of a data type."""
    target = NUMPY_OF[datatype]
    if numbers.dtype != target and numbers.size:
        low, high = _bounds(datatype)
        unfit = numbers[(numbers < low) | (numbers > high)]
        if unfit.size:
            raise _unfit(name, datatype, unfit[0].item())
    return numbers.astype(target, copy=False)


def to_texts(array: Array, *, in_base64: bool) -> tuple[list[str], bool]:
    """Return an array of strings as text, in row-major order.

    Returns:
        The texts, and whether they are in base64: on request, or because a string is not UTF-8.
    """
    values: list[bytes] = array.reshape(-1).tolist()
    if not in_base64:
        try:
            return [value.decode() for value in values], False
        except UnicodeDecodeError:
            pass
    return [base64.b64encode(value).decode() for value in values], True


def check_types(signature: Signature, inputs: Mapping[str, Array]) -> None:
    """Check the data types of inputs that the signature has."""
    for name, array in inputs.items():
        spec = signature.inputs.get(name)
        # Names are checked elsewhere.
        if spec is not None and array.dtype != NUMPY_TYPES.get(spec.dtype):
            raise invalid_argument(
                f"expected input {name} to be {datatype_named(spec.dtype)}, "
                f"got {datatype_named(DTYPE_NAMES[array.dtype])}"
            )


def _split(name: str, content: memoryview, count: int) -> list[bytes]:
    texts: list[bytes] = []
    position = 0
    if count * _PREFIX <= len(content):
        for _ in range(count):
            start = position + _PREFIX
            position = start + int.from_bytes(content[position:start], "little")
            texts.append(bytes(content[start:position]))
            if position > len(content):
                break
    if len(texts) != count or position != len(content):
        raise invalid_argument(
            f"Input {name} must have {count} elements of type BYTES, each after its length in 4 "
            f"bytes, in exactly {len(content)} bytes"
        )
    return texts


def _flat(name: str, shape: Sequence[int], data: list[Any]) -> list[Any]:
    expected = f"flat, or nested as {list(shape)}" if len(shape) > 1 else "flat"
    if len(shape) < 2 or not data or not isinstance(data[0], list):
        if len(data) != math.prod(shape):
            raise invalid_argument(
                f"expected the data of input {name} to be {math.prod(shape)} values, {expected}, "
                f"got {len(data)}"
            )
        return data
    level: list[Any] = [data]
    for size in shape:
        if not all(isinstance(part, list) and len(part) == size for part in level):
            raise invalid_argument(f"expected the data of input {name} to be {expected}")
        level = [value for part in level for value in part]
    return level


def _numbers(name: str, datatype: str, flat: list[Any]) -> Array:
    if datatype in _FLOATS:
        _check_types(name, datatype, flat, int, float)
        return round_floats(np.array(flat, np.float64), NUMPY_OF[datatype])
    _check_types(name, datatype, flat, int)
    low, high = _bounds(datatype)
    if flat and (min(flat) < low or max(flat) > high):
        raise _unfit(name, datatype, next(value for value in flat if not low <= value <= high))
    return np.array(flat, numpy_of(name, datatype))


def _booleans(name: str, flat: list[Any]) -> Array:
    _check_types(name, "BOOL", flat, bool, int)
    for value in flat:
        if value not in _BITS:
            raise _unfit(name, "BOOL", value)
    return np.array(flat, np.bool_)


def _bytes(name: str, value: Any, *, in_base64: bool) -> bytes:
    if not isinstance(value, str):
        raise _unfit(name, BYTES, value)
    try:
        if in_base64:
            return base64.b64decode(value.encode("ascii"), validate=True)
        # Invalid UTF-8 was parsed as surrogates.
        return value.encode("utf-8", "surrogateescape")
    except (binascii.Error, UnicodeEncodeError):
        kind = "base64" if in_base64 else "text"
        raise invalid_argument(f"expected the data of input {name} to be {kind}") from None


def _check_types(name: str, datatype: str, flat: list[Any], *allowed: type) -> None:
    # Exactly these types: in Python, a bool is an int.
    if not set(map(type, flat)) <= set(allowed):
        raise _unfit(name, datatype, next(value for value in flat if type(value) not in allowed))


def _bounds(datatype: str) -> tuple[int, int]:
    limits = np.iinfo(NUMPY_OF[datatype])
    return int(limits.min), int(limits.max)


def _unfit(name: str, datatype: str, value: Any) -> StatusError:
    return invalid_argument(
        f"expected the data of input {name} to hold {datatype} values, got {echo(value)}"
    )

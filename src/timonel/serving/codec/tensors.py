"""Convert JSON values to arrays by the dtype rules of TensorFlow Serving.

This is the reference, which words every error. `number_arrays` returns the same arrays for most
requests several times faster, or gives up.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from timonel.serving.codec.jsontext import echo, type_name
from timonel.serving.signature import NUMPY_TYPES, STRING, Array, display_name, string_array
from timonel.serving.status import Code, StatusError, invalid_argument

_MAX_RANK = 32
"""Limit of nested lists; `signature_check` compares the rank with the declared one."""

_INT32 = (-(2**31), 2**31 - 1)
# Narrow types accept the range of int32 and wrap around, as in TensorFlow Serving.
INTEGER_RANGES: Mapping[str, tuple[int, int]] = {
    "DT_INT8": _INT32,
    "DT_UINT8": _INT32,
    "DT_INT16": _INT32,
    "DT_INT32": _INT32,
    "DT_INT64": (-(2**63), 2**63 - 1),
    "DT_UINT32": (0, 2**32 - 1),
    "DT_UINT64": (0, 2**64 - 1),
}
FLOATS = frozenset({"DT_FLOAT", "DT_DOUBLE"})
"""Floating-point types that JSON numbers can be read into."""
JSON_TYPES = frozenset({*FLOATS, *INTEGER_RANGES, "DT_BOOL", STRING})
"""Data types that TensorFlow Serving's JSON has."""


def to_array(value: Any, dtype: str) -> Array:
    """Convert nested lists or a scalar to an array of ``dtype``."""
    column = Column(dtype)
    column.add(value)
    return column.to_array().reshape(shape_of(value))


class Column:
    """Collect values of one shape and data type into an array."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._convert = _converter(dtype)
        self._shape: tuple[int, ...] | None = None
        self._flat: list[Any] = []
        self._count = 0

    def add(self, value: Any) -> None:
        """Add nested lists or a scalar."""
        shape = shape_of(value)
        if self._shape is None:
            if len(shape) > _MAX_RANK:
                raise invalid_argument(f"Expecting rank {_MAX_RANK} at most, got {len(shape)}")
            self._shape = shape
        elif shape != self._shape:
            if (size := math.prod(shape)) != (expected := math.prod(self._shape)):
                raise invalid_argument(f"Expecting tensor size: {expected} but got: {size}")
            raise invalid_argument(f"Expecting shape {_text(self._shape)} but got: {_text(shape)}")
        if shape:
            _fill(value, 0, shape, self._convert, self._flat)
        else:
            self._flat.append(self._convert(value))
        self._count += 1

    def to_array(self) -> Array:
        """Return the values, stacked along the first dimension."""
        return _as_array(self._flat, self._dtype).reshape(self._count, *(self._shape or ()))


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape given by the first element at each depth."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def is_b64(value: object) -> bool:
    """Whether ``value`` encodes bytes: an object with the single key ``b64``."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def _text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _fill(
    value: Any,
    level: int,
    shape: tuple[int, ...],
    convert: Callable[[Any], Any],
    flat: list[Any],
) -> None:
    rank = len(shape)
    if not isinstance(value, list):
        if level != rank:
            raise invalid_argument(
                f"JSON Value: {echo(value)} Type: {type_name(value)} found at incorrect level: "
                f"{level + 1} in the JSON DOM. Expected at level: {rank}"
            )
        flat.append(convert(value))
        return
    if level >= rank:
        raise invalid_argument(f"Encountered list at unexpected level: {level} expected < {rank}")
    if len(value) != shape[level]:
        raise invalid_argument(
            f"Encountered list at unexpected size: {len(value)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    if level == rank - 1 and list not in set(map(type, value)):
        flat.extend(map(convert, value))
        return
    for element in value:
        _fill(element, level + 1, shape, convert, flat)


def _converter(dtype: str) -> Callable[[Any], Any]:
    if dtype in FLOATS:
        return lambda value: _number(value, dtype)
    if dtype in INTEGER_RANGES:
        return lambda value: _integer(value, dtype)
    if dtype == "DT_BOOL":
        return lambda value: _boolean(value, dtype)
    if dtype == STRING:
        return to_bytes
    return lambda value: _refuse_type(value, dtype)


def _number(value: Any, dtype: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _type_error(value, dtype)
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _integer(value: Any, dtype: str) -> int:
    low, high = INTEGER_RANGES[dtype]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _type_error(value, dtype)
    return value


def _boolean(value: Any, dtype: str) -> bool:
    if not isinstance(value, bool):
        raise _type_error(value, dtype)
    return value


def to_bytes(value: Any) -> bytes:
    """Return the bytes of a JSON string or ``b64`` object."""
    if isinstance(value, str):
        return _encoded(value)
    if not isinstance(value, dict):
        raise _type_error(value, STRING)
    if not is_b64(value):
        raise invalid_argument(f"JSON Value: {echo(value)} not formatted correctly for base64 data")
    try:
        return from_b64(value["b64"].encode("ascii"))
    except ValueError:
        raise invalid_argument("Unable to base64 decode") from None


def from_b64(text: bytes) -> bytes:
    """Decode base64, in which padding is optional and white space skipped."""
    joined = b"".join(text.split())
    return base64.b64decode(joined + b"=" * (-len(joined) % 4), validate=True)


def _encoded(text: str) -> bytes:
    try:
        # Invalid UTF-8 was parsed as surrogates.
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _refuse_type(value: Any, dtype: str) -> Any:
    raise StatusError(
        Code.UNIMPLEMENTED,
        f"Conversion of JSON Value: {echo(value)} to type: {display_name(dtype)}",
    )


def _type_error(value: Any, dtype: str) -> StatusError:
    return invalid_argument(
        f"JSON Value: {echo(value)} Type: {type_name(value)} is not of expected type: "
        f"{display_name(dtype)}"
    )


def _as_array(flat: list[Any], dtype: str) -> Array:
    target = NUMPY_TYPES[dtype]
    if dtype == STRING:
        return string_array(flat)
    if dtype in INTEGER_RANGES:
        wide = np.uint64 if dtype == "DT_UINT64" else np.int64
        return np.array(flat, dtype=wide).astype(target)
    if dtype == "DT_BOOL":
        return np.array(flat, dtype=target)
    with np.errstate(over="ignore"):
        return np.array(flat, dtype=np.float64).astype(target)

"""Lists of values, as JSON and typed protos have them, to arrays and back. Pure.

A number that the type does not hold is refused, not cut. Only numbers for floating-point types
are rounded.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from timonel.serving.rest.jsontext import echo, type_name
from timonel.serving.rest.outline import Numbers
from timonel.serving.runtimes.base import Array
from timonel.serving.status import StatusError, invalid_argument
from timonel.serving.v2.tensors import BYTES, as_objects, numpy_of

_EXACT: Final = 2**53
"""Below it, no two integers are the same float64."""
_FLOATS: Final = frozenset({"FP16", "BF16", "FP32", "FP64"})
_BITS: Final = (0, 1)


def from_values(
    name: str, datatype: str, shape: Sequence[int], data: Any, *, in_base64: bool = False
) -> Array:
    """Return the tensor whose elements are in ``data``.

    Args:
        name: The input's name.
        datatype: Its type.
        shape: Its shape.
        data: Its elements in a flat list, or in one that is nested like the shape.
        in_base64: Whether strings are written in base64.

    Raises:
        StatusError: Elements are not of the type, or not as many as the shape says.
    """
    numpy_of(name, datatype)
    if not isinstance(data, list):
        raise invalid_argument(
            f"expected the data of input {name} to be a list, got {type_name(data)}"
        )
    flat = _flat(name, shape, data)
    if datatype == BYTES:
        texts = [_bytes(name, value, in_base64=in_base64) for value in flat]
        return as_objects(texts).reshape(shape)
    if datatype == "BOOL":
        return _booleans(name, flat).reshape(shape)
    return _numbers(name, datatype, flat).reshape(shape)


def from_numbers(datatype: str, shape: Sequence[int], numbers: Numbers) -> Array | None:
    """Return what `from_values` would, or none where only that can tell.

    Args:
        datatype: The input's type.
        shape: Its shape.
        numbers: Its elements, read as float64, flat or nested like the shape.
    """
    given = numbers.values.shape
    if given not in {(math.prod(shape),), tuple(shape)} or datatype in {BYTES, "BOOL"}:
        return None
    if datatype in _FLOATS:
        return _rounded(numbers.values, datatype).reshape(shape)
    low, high = _bounds(datatype)
    values = numbers.values
    if not numbers.whole or abs(values).max() >= _EXACT:
        return None
    if values.min() < low or values.max() > high:
        return None
    return values.astype(numpy_of("", datatype)).reshape(shape)


def to_texts(array: Array, *, in_base64: bool) -> tuple[list[str], bool]:
    """Return an array of strings as texts, in row-major order.

    Returns:
        The texts, and whether they are in base64: because that was asked for, or because one of
        them is no UTF-8.
    """
    values: list[bytes] = array.reshape(-1).tolist()
    if not in_base64:
        try:
            return [value.decode() for value in values], False
        except UnicodeDecodeError:
            pass
    return [base64.b64encode(value).decode() for value in values], True


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
        return _rounded(np.array(flat, np.float64), datatype)
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
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _unfit(name, BYTES, value)
    try:
        if in_base64:
            return base64.b64decode(value.encode("ascii"), validate=True)
        # Bytes that are no UTF-8 come as surrogates.
        return value.encode("utf-8", "surrogateescape")
    except (binascii.Error, UnicodeEncodeError):
        kind = "base64" if in_base64 else "text"
        raise invalid_argument(f"expected the data of input {name} to be {kind}") from None


def _check_types(name: str, datatype: str, flat: list[Any], *allowed: type) -> None:
    # Exactly these: a bool is an int to Python.
    if not set(map(type, flat)) <= set(allowed):
        raise _unfit(name, datatype, next(value for value in flat if type(value) not in allowed))


def _rounded(values: NDArray[np.float64], datatype: str) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(numpy_of("", datatype), copy=False)


def _bounds(datatype: str) -> tuple[int, int]:
    limits = np.iinfo(numpy_of("", datatype))
    return int(limits.min), int(limits.max)


def _unfit(name: str, datatype: str, value: Any) -> StatusError:
    return invalid_argument(
        f"expected the data of input {name} to hold {datatype} values, got {echo(value)}"
    )

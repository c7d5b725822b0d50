"""Encode nested plain data as JSON and arrays. Pure.

Plain data are numbers, strings, None, and lists, tuples and dicts of them. Values without a JSON
form become a dict with one key that begins with ``$``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_MARK = "$"
_SCALARS = (bool, int, float, str, type(None))


class NotPlainError(TypeError):
    """A value is not plain data."""


def encode(value: Any, arrays: list[Array]) -> Any:
    """Encode ``value`` as JSON types, appending its arrays to ``arrays``.

    Raises:
        NotPlainError: A part is neither plain data nor an array of numbers.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            raise NotPlainError(f"expected an array of numbers, got {value.dtype}")
        arrays.append(np.asarray(value))
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return {_MARK + kind: len(arrays) - 1}
    if type(value) is list:
        return [encode(item, arrays) for item in value]
    if type(value) is tuple:
        return {_MARK + "tuple": [encode(item, arrays) for item in value]}
    if isinstance(value, dict):
        return _encode_dict(value, arrays)
    raise NotPlainError(f"expected plain data, got {type(value).__name__}")


def decode(value: Any, arrays: Sequence[Array]) -> Any:
    """Decode the result of `encode`."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) != 1 or not next(iter(value)).startswith(_MARK):
        return {key: decode(item, arrays) for key, item in value.items()}
    return _decode_marked(*next(iter(value.items())), arrays)


def _decode_marked(kind: str, content: Any, arrays: Sequence[Array]) -> Any:
    if kind == "$array":
        return arrays[content]
    if kind == "$number":
        return arrays[content][()]
    if kind == "$tuple":
        return tuple(decode(item, arrays) for item in content)
    return {decode(key, arrays): decode(item, arrays) for key, item in content}


def _encode_dict(value: Mapping[Any, Any], arrays: list[Array]) -> Any:
    if all(type(key) is str for key in value) and not any(key[:1] == _MARK for key in value):
        return {key: encode(item, arrays) for key, item in value.items()}
    pairs = [[encode(key, arrays), encode(item, arrays)] for key, item in value.items()]
    return {_MARK + "dict": pairs}

"""Encode arrays as JSON text. Pure.

The JSON has no whitespace, and floats have the fewest digits that are exact in their type. NaN and
the infinities, which JSON lacks, are bare tokens, as in TensorFlow Serving.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson

from timonel.serving.codec.tensors import JSON_TYPES
from timonel.serving.signature import DTYPE_NAMES, Array
from timonel.serving.status import invalid_argument

CHUNK = 2**14
"""Number of elements that are encoded at once."""


def encode(outputs: Mapping[str, Array], *, by_row: bool) -> bytes:
    """Encode the outputs of a signature as a Predict response."""
    if not outputs:
        raise invalid_argument("Cannot convert empty tensor map to JSON")
    if by_row:
        _check_rows(outputs)
    for array in outputs.values():
        dtype = DTYPE_NAMES.get(array.dtype) or str(array.dtype)
        if dtype not in JSON_TYPES and array.size:
            raise invalid_argument(f"Failed to write JSON value for tensor type: {dtype}")
    pieces = [b'{"predictions":' if by_row else b'{"outputs":']
    if len(outputs) == 1:
        ((name, array),) = outputs.items()
        pieces += array_text(name, array)
    elif by_row:
        pieces += _rows_text(outputs)
    else:
        for index, (name, array) in enumerate(outputs.items()):
            pieces.append(b"," if index else b"{")
            pieces += (orjson.dumps(name), b":", *array_text(name, array))
        pieces.append(b"}")
    pieces.append(b"}")
    return b"".join(pieces)


def _check_rows(outputs: Mapping[str, Array]) -> None:
    batch: int | None = None
    for name, array in outputs.items():
        if array.ndim == 0:
            raise invalid_argument(f"Tensor name: {name} has no shape information ")
        if batch is not None and array.shape[0] != batch:
            raise invalid_argument(
                f"Tensor name: {name} has inconsistent batch size: {array.shape[0]} "
                f"expecting: {batch}"
            )
        batch = array.shape[0]


def array_text(name: str, array: Array) -> Iterator[bytes]:
    """Yield the JSON of an array, in pieces of `CHUNK` elements.

    Small pieces, as both JSON writers hold the GIL until they are done.
    """
    if array.size <= CHUNK:
        yield _dumps(name, array)
        return
    yield b"["
    step = max(1, CHUNK * len(array) // array.size)
    for start in range(0, len(array), step):
        if start:
            yield b","
        part = array[start : start + step]
        if part.size > CHUNK and len(part) == 1:
            yield from array_text(name, part[0])
        else:
            yield _dumps(name, part)[1:-1]
    yield b"]"


def _rows_text(outputs: Mapping[str, Array]) -> Iterator[bytes]:
    """Yield the JSON of a list with one object per row."""
    count = len(next(iter(outputs.values())))
    size = sum(array.size for array in outputs.values())
    step = max(1, CHUNK * count // max(size, 1))
    yield b"["
    for start in range(0, count, step):
        if start:
            yield b","
        part = {name: array[start : start + step] for name, array in outputs.items()}
        finite = all(map(is_finite, part.values()))
        columns = [_rendered(name, array, finite=finite) for name, array in part.items()]
        rows = [dict(zip(part, row, strict=True)) for row in zip(*columns, strict=True)]
        yield dumps(rows, finite=finite)[1:-1]
    yield b"]"


def _dumps(name: str, array: Array) -> bytes:
    finite = is_finite(array)
    return dumps(_rendered(name, array, finite=finite), finite=finite)


def _rendered(name: str, array: Array, *, finite: bool) -> Any:
    return _for_orjson(name, array) if finite else for_json(name, array)


def dumps(content: Any, *, finite: bool) -> bytes:
    """Encode JSON; NaN and infinities need ``finite`` to be false."""
    if finite:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def is_finite(array: Array) -> bool:
    """Return whether an array holds no NaN or infinity."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _for_orjson(name: str, array: Array) -> Any:
    if array.dtype == object:
        return _strings(name, array)
    if not array.size:
        # Empty arrays may have a dtype that orjson does not support.
        return array.tolist()
    return np.ascontiguousarray(array) if array.ndim else array[()]


def for_json(name: str, array: Array) -> Any:
    """Return an array as lists for Python's JSON writer."""
    if array.dtype == object:
        return _strings(name, array)
    if array.dtype == np.float32:
        # The shortest digits of a float32, read as a float64, are written with the same digits
        # again.
        short = [float(str(number)) for number in array.reshape(-1)]
        return np.array(short).reshape(array.shape).tolist()
    return array.tolist()


def _strings(name: str, array: Array) -> Any:
    if name.endswith("_bytes"):
        return _each(array.tolist(), _b64)
    return _each(array.tolist(), text_or_b64)


def text_or_b64(value: bytes) -> str | dict[str, str]:
    """Return a string for JSON, as ``b64`` if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        # TensorFlow Serving writes the raw bytes here, which is invalid JSON.
        return _b64(value)


def _b64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _each(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_each(element, convert) for element in value]
    return convert(value)

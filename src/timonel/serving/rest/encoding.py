"""Arrays to the JSON of Predict responses. Pure functions.

Floats take the fewest digits that give the same value back in their own type. NaN and the
infinities, which JSON does not have, are bare tokens, as TensorFlow Serving writes them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson

from timonel.serving.runtimes.base import DTYPE_NAMES, STRING, Array
from timonel.serving.status import invalid_argument

_WRITABLE = frozenset(
    {
        "DT_FLOAT",
        "DT_DOUBLE",
        "DT_INT8",
        "DT_UINT8",
        "DT_INT16",
        "DT_INT32",
        "DT_INT64",
        "DT_UINT32",
        "DT_UINT64",
        "DT_BOOL",
        STRING,
    }
)


def encode(outputs: Mapping[str, Array], *, by_row: bool) -> bytes:
    """Return the response text for the outputs of a signature.

    Args:
        outputs: Arrays by output name; the name of a single one is left out.
        by_row: Whether to write a list of rows, or else whole columns.

    Raises:
        StatusError: A dtype has no JSON form, or the outputs do not fall into rows.
    """
    for array in outputs.values():
        dtype = DTYPE_NAMES.get(array.dtype, str(array.dtype))
        if dtype not in _WRITABLE:
            raise invalid_argument(f"Failed to write JSON value for tensor type: {dtype}")
    if by_row:
        _check_rows(outputs)
    finite = all(map(_is_finite, outputs.values()))
    render = _for_orjson if finite else _for_json
    values = {name: render(name, array) for name, array in outputs.items()}
    content = _arrange(values, by_row=by_row)
    if finite:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def encode_error(message: str) -> bytes:
    """Return the response text for an error."""
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})


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


def _arrange(values: Mapping[str, Any], *, by_row: bool) -> dict[str, Any]:
    key = "predictions" if by_row else "outputs"
    if len(values) == 1:
        return {key: next(iter(values.values()))}
    if not by_row:
        return {key: values}
    return {
        key: [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    }


def _is_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _for_orjson(name: str, array: Array) -> Any:
    if array.dtype == object:
        return _strings(name, array)
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _for_json(name: str, array: Array) -> Any:
    if array.dtype == object:
        return _strings(name, array)
    if array.dtype == np.float32:
        # The digits of a float32 read as a float64 are the same digits again when written.
        short = [float(str(number)) for number in array.reshape(-1)]
        return np.array(short).reshape(array.shape).tolist()
    return array.tolist()


def _strings(name: str, array: Array) -> Any:
    if name.endswith("_bytes"):
        return _each(array.tolist(), _b64)
    return _each(array.tolist(), _text)


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        # TensorFlow Serving writes invalid JSON here.
        return _b64(value)


def _b64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _each(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_each(element, convert) for element in value]
    return convert(value)

"""JSON Schemas and examples of signature tensors. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from timonel.serving.client.client_signature import is_image
from timonel.serving.protocols.tfs_rest.tensors import display_name
from timonel.serving.signature import NUMPY_TYPES, STRING, TensorSpec

Schema = dict[str, Any]
Large = Callable[[TensorSpec, Sequence[int]], Any]

_FORMATS: Final = {"DT_FLOAT": "float", "DT_DOUBLE": "double"}
_INTEGERS: Final = frozenset(
    {
        "DT_INT8",
        "DT_INT16",
        "DT_INT32",
        "DT_INT64",
        "DT_UINT8",
        "DT_UINT32",
        "DT_UINT64",
    }
)
SMALL_PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAASUlEQVR42mNggAMWDh4BEQkZBgYOAQkFDQMLBgYe"
    "CRUDG48QBgYBBQOHgIQCBgYRDZuAlIoeBgYJA4+EigkrGBhkLEIKelYcAQABlwxBTVvBigAAAABJRU5ErkJggg=="
)
"""Image of 8 by 8 grey pixels in base64, for image models."""
_TEXT: Final = {"type": "string"}
_BYTES: Final = {
    "type": "object",
    "description": "Bytes, in base64.",
    "properties": {"b64": {"type": "string", "contentEncoding": "base64"}},
    "required": ["b64"],
    "additionalProperties": False,
}


class TooLargeError(ValueError):
    """An example would have too many elements to write out."""


def has_json(spec: TensorSpec) -> bool:
    """Whether TensorFlow Serving's JSON can carry a tensor's data type."""
    return spec.dtype in _INTEGERS | _FORMATS.keys() | {"DT_BOOL", STRING}


def has_rows(specs: Mapping[str, TensorSpec]) -> bool:
    """Whether all tensors have, or may have, a first dimension."""
    return all(spec.shape is None or len(spec.shape) > 0 for spec in specs.values())


def title(spec: TensorSpec) -> str:
    """Describe data type and shape, such as ``float [?, 28, 28]``."""
    if spec.shape is None:
        return f"{display_name(spec.dtype)} of any shape"
    sizes = ", ".join("?" if size < 0 else str(size) for size in spec.shape)
    return f"{display_name(spec.dtype)} [{sizes}]"


def tensor(spec: TensorSpec, *, as_row: bool = False) -> Schema:
    """Return the schema of a tensor as nested lists.

    Args:
        spec: The tensor; `has_json` must hold.
        as_row: Omit the first dimension.
    """
    schema = _element(spec.dtype)
    if spec.shape is None:
        return {"anyOf": [schema, {"type": "array"}], "description": title(spec)}
    for size in reversed(spec.shape[1:] if as_row else spec.shape):
        schema = {"type": "array", "items": schema}
        if size >= 0:
            schema |= {"minItems": size, "maxItems": size}
    return {**schema, "description": title(spec)}


def example(
    name: str, spec: TensorSpec, *, as_row: bool = False, most: int, large: Large | None = None
) -> Any:
    """Return an example value of a tensor.

    Unknown sizes, such as the batch size, are 1.

    Args:
        name: The tensor's name in requests.
        spec: The tensor; `has_json` must hold.
        as_row: Omit the first dimension.
        most: The largest tensor, in elements, to write out.
        large: Returns a placeholder for a larger tensor; by default that is an error.

    Raises:
        TooLargeError: The tensor has more elements.
    """
    declared = spec.shape if spec.shape is not None else (-1,)
    sizes = [1 if size < 0 else size for size in (declared[1:] if as_row else declared)]
    if math.prod(sizes) > most:
        if large is None:
            raise TooLargeError(f"expected at most {most} elements, got {title(spec)}")
        return large(spec, sizes)
    value: Any = _value(name, spec.dtype)
    for size in reversed(sizes):
        value = [value] * size
    return value


def _element(dtype: str) -> Schema:
    if dtype in _FORMATS:
        return {"type": "number", "format": _FORMATS[dtype]}
    if dtype in _INTEGERS:
        limits = np.iinfo(NUMPY_TYPES[dtype])
        return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
    return {"type": "boolean"} if dtype == "DT_BOOL" else {"anyOf": [_TEXT, _BYTES]}


def _value(name: str, dtype: str) -> Any:
    if dtype == STRING:
        return {"b64": SMALL_PNG} if is_image(name, dtype) else "text"
    if dtype == "DT_BOOL":
        return True
    return 1 if dtype in _INTEGERS else 0.5

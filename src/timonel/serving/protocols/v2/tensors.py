"""Tensors of the Open Inference Protocol: types, shapes, raw and JSON data. Pure.

Raw contents are in row-major order and little-endian. Each BYTES element follows its length in four
bytes.

A number from JSON or a typed proto beyond the range of its data type is rejected, not truncated.
Only numbers for floating-point types are rounded.
"""

from __future__ import annotations

import base64
import itertools
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from timonel.serving.codec.jsontext import type_name
from timonel.serving.codec.number_arrays import (
    NumberArray,
    Outline,
    array_of,
    leaf_of,
)
from timonel.serving.codec.tensors import from_b64
from timonel.serving.protos.tensors import MAX_STRINGS
from timonel.serving.signature import (
    DTYPE_NAMES,
    NUMPY_TYPES,
    STRING,
    Array,
    Signature,
    narrowed,
    string_array,
)
from timonel.serving.status import StatusError, invalid_argument

BYTES: Final = "BYTES"
_DATATYPES: Mapping[str, str] = {
    **{name: name.removeprefix("DT_") for name in NUMPY_TYPES if "COMPLEX" not in name},
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


def from_json(
    name: str,
    datatype: str,
    shape: Sequence[int],
    data: Any,
    outline: Outline,
    *,
    in_base64: bool = False,
) -> Array:
    """Decode the values in a request's outline, flat or nested as the shape."""
    numpy_of(name, datatype)
    if not isinstance(data, list | NumberArray):
        raise invalid_argument(
            f"expected the data of input {name} to be a list, got {type_name(data)}"
        )
    try:
        array = array_of(outline, data, _json_type(datatype, data))
    except StatusError as error:
        raise invalid_argument(
            f"expected the data of input {name} to hold {datatype} values: {error.message}"
        ) from None
    if array is None:
        raise invalid_argument(f"expected the data of input {name} to hold {datatype} values")
    count = math.prod(shape)
    # Lists without values do not tell all sizes.
    if array.size != count or array.shape not in {(count,), tuple(shape[: array.ndim])}:
        nested = f", or nested as {list(shape)}" if len(shape) > 1 else ""
        raise invalid_argument(
            f"expected the data of input {name} to be {count} values, flat{nested}, "
            f"got {list(array.shape)}"
        )
    if datatype != BYTES:
        array = in_range(name, datatype, array)
    elif in_base64:
        array = _unpacked(name, array)
    return array.reshape(shape)


def in_range(name: str, datatype: str, numbers: Array) -> Array:
    """Convert numbers of a wider type, which hold values of a data type."""
    try:
        return narrowed(numbers, NUMPY_OF[datatype])
    except OverflowError as error:
        raise invalid_argument(
            f"expected the data of input {name} to hold {datatype} values, got {error}"
        ) from None


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


def _json_type(datatype: str, data: Any) -> str:
    """Return the type to read JSON values as, which has all values of the data type."""
    if datatype in _FLOATS:
        return "DT_DOUBLE"
    if datatype == "BOOL" and isinstance(leaf_of(data), bool):
        return "DT_BOOL"
    return {BYTES: STRING, "UINT64": "DT_UINT64"}.get(datatype, "DT_INT64")


def _unpacked(name: str, array: Array) -> Array:
    """Decode strings in base64."""
    try:
        flat = [from_b64(value) for value in array.reshape(-1).tolist()]
    except ValueError:
        raise invalid_argument(f"expected the data of input {name} to be base64") from None
    return string_array(flat)

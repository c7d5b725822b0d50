"""Read large arrays of numbers directly from a request's bytes. Pure.

A request is split into its arrays of numbers and an outline: the text around them, with a
placeholder for each array. The numbers of an array are read into one flat buffer, several times as
fast as parsing to Python lists and converting those; the outline is small and parsed as usual. The
reader is the compiled ``_numbers``, which releases the GIL. Where that was not built, requests are
parsed as usual.

All functions give up instead of reporting an error. The result is correct wherever the text is
split: a request is its outline with the array texts in place of the placeholders, valid JSON with a
string as a member's value stays valid with any other JSON there, and each array text is parsed as
JSON by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from timonel.serving.inference.signature_check import fits
from timonel.serving.protocols.tfs_rest.jsontext import parse_strictly
from timonel.serving.protocols.tfs_rest.tensors import (
    FLOATS,
    Allocate,
    allocate_plainly,
    cast_integers,
    to_array_fast,
    write_floats,
)
from timonel.serving.signature import Array, TensorSpec

Specs = Mapping[str, TensorSpec]

_Read = Callable[[bytes, int, int], tuple[bytes, tuple[int, ...], bool] | None]

try:
    from timonel.serving.protocols.tfs_rest import _numbers
except ImportError:  # built without a compiler
    NATIVE: _Read | None = None
else:
    NATIVE = _numbers.read

_MIN_BYTES = 1024
"""Below this size, the usual parser is as fast."""
_HOLE = "\0"
_BEFORE_ARRAY = re.compile(rb"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}(?=\[)")
_MOST_ESCAPED, _MOST_BACKSLASHES = 64, 256
_BACKSLASH = ord("\\")


@dataclass(frozen=True, eq=False)
class NumberArray:
    """A regular array of at least one number.

    Args:
        values: The numbers as float64, in the array's shape.
        whole: Whether all were written as integers.
    """

    values: NDArray[np.float64]
    whole: bool


@dataclass(frozen=True, eq=False)
class Outline:
    """A request whose large arrays of numbers have been read.

    Args:
        content: The JSON object; use `fill` to resolve placeholders.
        has_booleans: Whether true or false may occur in the text.
        arrays: The arrays of the placeholders.
    """

    content: dict[str, Any]
    has_booleans: bool
    arrays: tuple[NumberArray, ...]

    def fill(self, value: Any) -> Any:
        """Return the numbers of a placeholder; other values unchanged."""
        if isinstance(value, str) and value.startswith(_HOLE):
            return self.arrays[int(value[1:])]
        return value


def read_outline(body: bytes) -> Outline | None:
    """Split a request into an outline and arrays of numbers.

    None if it has no large array of numbers, or may be invalid.
    """
    if NATIVE is None or len(body) < _MIN_BYTES:
        return None
    pieces: list[bytes] = []
    arrays: list[NumberArray] = []
    done = 0
    for start, end in _arrays(body):
        found = NATIVE(body, start, end)
        if found is None:
            return None
        content, shape, whole = found
        pieces += (body[done:start], b'"\\u0000%d"' % len(arrays))
        arrays.append(NumberArray(np.frombuffer(content).reshape(shape), whole))
        done = end
    text = b"".join((*pieces, body[done:]))
    # A string with a zero byte, always an escape in JSON, could look like a placeholder.
    if not arrays or text.count(b"\\u0000") > len(arrays):
        return None
    try:
        parsed = parse_strictly(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(parsed, dict):
        return None
    return Outline(parsed, b"true" in text or b"false" in text, tuple(arrays))


def decode_outline(
    outline: Outline, specs: Specs, allocate: Allocate = allocate_plainly
) -> dict[str, Array] | None:
    """Return tensors by input name; None leaves it to the slow path."""
    content = outline.content
    if ("instances" in content) == ("inputs" in content):
        return None
    if "instances" in content:
        value = outline.fill(content["instances"])
        columns = _columns_of_rows(outline, value, specs)
    else:
        value = outline.fill(content["inputs"])
        columns = _columns(outline, value, specs)
    if columns is None:
        return None
    arrays: dict[str, Array] = {}
    for name, column in columns.items():
        array = _array(outline, column, specs[name], allocate)
        if array is None:
            return None
        arrays[name] = array
    return arrays


def _arrays(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of large member arrays without strings."""
    # If the text is mostly strings, the usual parser is as fast.
    strings_left = len(body) // _MIN_BYTES
    opened = body.find(b'"')
    while opened >= 0:
        strings_left -= 1
        if strings_left < 0:
            return
        closed = _end_of_string(body, opened + 1)
        opened = body.find(b'"', closed + 1) if closed >= 0 else -1
        limit = opened if opened >= 0 else len(body)
        if closed < 0 or limit - closed < _MIN_BYTES:
            continue
        before = _BEFORE_ARRAY.match(body, closed + 1, limit)
        if before is None:
            continue
        brace = body.find(b"}", before.end(), limit)
        end = body.rfind(b"]", before.end(), brace if brace >= 0 else limit) + 1
        if end - before.end() >= _MIN_BYTES:
            yield before.end(), end


def _end_of_string(body: bytes, start: int) -> int:
    """Return the position of the closing quotation mark of a string.

    Returns:
        -1 if it is missing, or takes long to find behind very many escapes.
    """
    at = start
    for _ in range(_MOST_ESCAPED):
        end = body.find(b'"', at)
        if end < 0 or body[end - 1] != _BACKSLASH:
            return end
        before = body[max(start, end - _MOST_BACKSLASHES) : end]
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if backslashes == _MOST_BACKSLASHES:
            return -1
        if backslashes % 2 == 0:
            return end
        at = end + 1
    return -1


def _columns(outline: Outline, value: Any, specs: Specs) -> dict[str, Any] | None:
    if isinstance(value, NumberArray):
        return dict.fromkeys(specs, value) if len(specs) == 1 else None
    if not isinstance(value, dict) or not specs.keys() <= value.keys():
        return None
    return {name: outline.fill(value[name]) for name in specs}


def _columns_of_rows(outline: Outline, value: Any, specs: Specs) -> dict[str, Any] | None:
    """Return the values of each input as a column.

    Arrays that hold all rows stay as they are.
    """
    if isinstance(value, NumberArray):
        return dict.fromkeys(specs, value) if len(specs) == 1 else None
    if not isinstance(value, list):
        return None
    if not all(isinstance(row, dict) and row.keys() == specs.keys() for row in value):
        return None
    return {name: [outline.fill(row[name]) for row in value] for name in specs}


def _array(outline: Outline, column: Any, spec: TensorSpec, allocate: Allocate) -> Array | None:
    dtype = spec.dtype
    if isinstance(column, NumberArray):
        if dtype in FLOATS:
            shape = column.values.shape
            return write_floats(column.values, _maker(spec, shape, allocate)(shape, dtype))
        return cast_integers(column.values, whole=column.whole, dtype=dtype)
    if not isinstance(column, list) or not column:
        return None
    if isinstance(column[0], NumberArray):
        return _stacked(column, spec, allocate)
    return None if outline.has_booleans else to_array_fast(column, dtype)


def _maker(spec: TensorSpec, shape: tuple[int, ...], allocate: Allocate) -> Allocate:
    """Return the allocator of an input.

    An input that will be rejected must not take shared memory.
    """
    return allocate if fits(spec.shape, shape) else allocate_plainly


def _stacked(rows: Sequence[Any], spec: TensorSpec, allocate: Allocate) -> Array | None:
    dtype, shape = spec.dtype, rows[0].values.shape
    if not all(isinstance(row, NumberArray) and row.values.shape == shape for row in rows):
        return None
    if dtype in FLOATS:
        stacked = _maker(spec, (len(rows), *shape), allocate)((len(rows), *shape), dtype)
        for row, place in zip(rows, stacked, strict=True):
            write_floats(row.values, place)
        return stacked
    arrays = []
    for row in rows:
        array = cast_integers(row.values, whole=row.whole, dtype=dtype)
        if array is None:
            return None
        arrays.append(array)
    return np.stack(arrays)

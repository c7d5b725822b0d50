"""Large arrays of numbers straight from a request's bytes into arrays. Pure.

A request is cut into its arrays of numbers and an outline: the text around them, with a hole in
the place of each. An array's numbers are read into one flat buffer, several times as fast as lists
of Python numbers are made and read again; the outline is small and read as always. What reads them
is the compiled ``_numbers``, without the interpreter's lock, or simdjson where that was not built.

All of it gives up rather than decide that something is wrong. That what it gives is right does
not depend on where it cuts: a request is its outline with the texts in the holes, an outline that
is JSON with a string in the place of a member's value is JSON with any JSON there, and each text is
read as JSON by itself.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from timonel.serving.inference.signature_check import fits
from timonel.serving.protocols.tfs_rest.jsontext import contains, parse_strictly
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
except ImportError:  # there was no compiler
    NATIVE: _Read | None = None
else:
    NATIVE = _numbers.read

try:
    from simdjson import Parser
except ImportError:  # no wheel for this platform
    PARSER: type[Any] | None = None
else:
    PARSER = Parser

_MIN_BYTES = 1024
"""Below, the other way is as fast."""
_MAX_RANK = 32
_KEPT_BYTES = 8 * 2**20
"""A parser keeps some ten bytes for every byte of the largest text that it has read."""
_HOLE = "\0"
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[],"))
_BEFORE_ARRAY = re.compile(rb"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}(?=\[)")
_MOST_ESCAPED, _MOST_BACKSLASHES = 64, 256
_BACKSLASH = ord("\\")

_kept = threading.local()


@dataclass(frozen=True, eq=False)
class Numbers:
    """A regular array of numbers, at least one.

    Args:
        values: The numbers, float64, in the array's shape.
        whole: Whether all were written as integers.
    """

    values: NDArray[np.float64]
    whole: bool


@dataclass(frozen=True, eq=False)
class Outline:
    """A request whose large arrays of numbers have been read.

    Args:
        content: The JSON object; only `fill` can tell what is a hole in it.
        has_booleans: Whether true or false may occur in it.
        arrays: What belongs into the holes.
    """

    content: dict[str, Any]
    has_booleans: bool
    arrays: tuple[Numbers, ...]

    def fill(self, value: Any) -> Any:
        """Return the numbers of a hole, or anything else as it is."""
        if isinstance(value, str) and value.startswith(_HOLE):
            return self.arrays[int(value[1:])]
        return value


def read_outline(body: bytes) -> Outline | None:
    """Cut a request up; none if it has no large array of numbers, or is not plainly right."""
    # A string with a zero byte, which JSON can only have as an escape, could look like a hole.
    if (NATIVE or PARSER) is None or len(body) < _MIN_BYTES or contains(body, b"\\u0000"):
        return None
    pieces: list[bytes] = []
    arrays: list[Numbers] = []
    done = 0
    for start, end in _arrays(body):
        numbers = _read(body, start, end)
        if numbers is None:
            return None
        pieces += (body[done:start], b'"\\u0000%d"' % len(arrays))
        arrays.append(numbers)
        done = end
    if not arrays:
        return None
    text = b"".join((*pieces, body[done:]))
    try:
        content = parse_strictly(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(content, dict):
        return None
    return Outline(content, b"true" in text or b"false" in text, tuple(arrays))


def decode_outline(
    outline: Outline, specs: Specs, allocate: Allocate = allocate_plainly
) -> dict[str, Array] | None:
    """Return a request's tensors by input name; none where only the slow way can tell."""
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
    """Yield where the large arrays start and end that are members' values and hold no string."""
    # Where most of it is strings, the other way is as fast.
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
    """Return where the closing quotation mark is of a string that starts here.

    Returns:
        -1 if there is none, or it takes long to find: behind very many escapes.
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


def _read(body: bytes, start: int, end: int) -> Numbers | None:
    """Return the numbers in a part that starts with a bracket, if they are regular."""
    if NATIVE is None:
        return _parse(body[start:end])
    found = NATIVE(body, start, end)
    if found is None:
        return None
    content, shape, whole = found
    return Numbers(np.frombuffer(content).reshape(shape), whole)


def _parse(text: bytes) -> Numbers | None:
    try:
        flat = _flat(text)
    except (ValueError, TypeError, RuntimeError):
        # No JSON, no array, not only numbers, one beyond 64 bits, or nested too deeply.
        return None
    shape = _shape(text.translate(None, _NOT_STRUCTURE))
    # An array of one number and an empty one look alike.
    if shape is None or math.prod(shape) != flat.size:
        return None
    return Numbers(flat.reshape(shape), whole=not any(mark in text for mark in (b".", b"e", b"E")))


def _flat(text: bytes) -> NDArray[np.float64]:
    assert PARSER is not None, "asked for only where there is one"
    parser = getattr(_kept, "parser", None) or PARSER()
    _kept.parser = parser if len(text) <= _KEPT_BYTES else None
    # Nothing refers to the document afterwards: only then may the parser be used again.
    return np.frombuffer(parser.parse(text).as_buffer(of_type="d"), dtype=np.float64)


def _shape(structure: bytes) -> tuple[int, ...] | None:
    """Return the shape of an array of which only brackets and commas are left, if regular."""
    rank = len(structure) - len(structure.lstrip(b"["))
    if not 0 < rank <= _MAX_RANK:
        return None
    shape: list[int] = []
    expected = b""
    for depth in range(1, rank + 1):
        # The first list at this depth ends where so many are closed at once.
        end = structure.find(b"]" * depth) if depth < rank else len(structure) - depth
        length = end + depth - (rank - depth) - 2
        count = (length + 1) // (len(expected) + 1)
        if count < 1:
            return None
        expected = b"[" + b",".join([expected] * count) + b"]"
        shape.insert(0, count)
    return tuple(shape) if expected == structure else None


def _columns(outline: Outline, value: Any, specs: Specs) -> dict[str, Any] | None:
    if isinstance(value, Numbers):
        return dict.fromkeys(specs, value) if len(specs) == 1 else None
    if not isinstance(value, dict) or not specs.keys() <= value.keys():
        return None
    return {name: outline.fill(value[name]) for name in specs}


def _columns_of_rows(outline: Outline, value: Any, specs: Specs) -> dict[str, Any] | None:
    """Return a list of values for each input; numbers as they are where they are all rows."""
    if isinstance(value, Numbers):
        return dict.fromkeys(specs, value) if len(specs) == 1 else None
    if not isinstance(value, list):
        return None
    if not all(isinstance(row, dict) and row.keys() == specs.keys() for row in value):
        return None
    return {name: [outline.fill(row[name]) for row in value] for name in specs}


def _array(outline: Outline, column: Any, spec: TensorSpec, allocate: Allocate) -> Array | None:
    dtype = spec.dtype
    if isinstance(column, Numbers):
        if dtype in FLOATS:
            shape = column.values.shape
            return write_floats(column.values, _maker(spec, shape, allocate)(shape, dtype))
        return cast_integers(column.values, whole=column.whole, dtype=dtype)
    if not isinstance(column, list) or not column:
        return None
    if isinstance(column[0], Numbers):
        return _stacked(column, spec, allocate)
    return None if outline.has_booleans else to_array_fast(column, dtype)


def _maker(spec: TensorSpec, shape: tuple[int, ...], allocate: Allocate) -> Allocate:
    """Return what makes an input: one that will be refused must not take shared memory."""
    return allocate if fits(spec.shape, shape) else allocate_plainly


def _stacked(rows: Sequence[Any], spec: TensorSpec, allocate: Allocate) -> Array | None:
    dtype, shape = spec.dtype, rows[0].values.shape
    if not all(isinstance(row, Numbers) and row.values.shape == shape for row in rows):
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

"""Read requests fast: large arrays of numbers directly from their bytes. Pure.

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

from timonel.serving.codec.jsontext import STEP_BYTES, parse, parse_strictly
from timonel.serving.codec.tensors import FLOATS, INTEGER_RANGES, is_b64, to_array
from timonel.serving.signature import NUMPY_TYPES, STRING, Array, TensorSpec
from timonel.serving.status import StatusError

Specs = Mapping[str, TensorSpec]

_Read = Callable[[bytes, int, int], tuple[bytes, tuple[int, ...], bool] | None]

try:
    from timonel.serving.codec import _numbers
except ImportError:  # built without a compiler
    NATIVE: _Read | None = None
else:
    NATIVE = _numbers.read

_EXACT_INTEGERS = (-(2**53) + 1, 2**53 - 1)
"""Range in which float64 represents each integer uniquely."""
MIN_BYTES = 1024
"""Below this size, the usual parser is as fast."""
_HOLE = "\0"
_BEFORE_ARRAY = re.compile(rb"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}(?=\[)")
_BACKSLASH = ord("\\")
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


@dataclass(frozen=True, eq=False)
class NumberArray:
    """A regular array of at least one number; ``whole`` if all were written as integers."""

    values: NDArray[np.float64]
    whole: bool


class Outline:
    """A request's JSON without its large arrays of numbers; `fill` resolves placeholders."""

    def __init__(
        self,
        body: bytes,
        content: dict[str, Any],
        text: bytes,
        arrays: Sequence[NumberArray] = (),
    ) -> None:
        self.content = content
        self.arrays = arrays
        self._body = body
        self._text = text
        self._has_booleans: bool | None = None

    def whole(self) -> Outline:
        """Return the outline with the arrays in their places, as Python lists."""
        return Outline(self._body, parse(self._body), self._body) if self.arrays else self

    def fill(self, value: Any) -> Any:
        """Return the numbers of a placeholder; other values unchanged."""
        if self.arrays and isinstance(value, str) and value.startswith(_HOLE):
            return self.arrays[int(value[1:])]
        return value

    @property
    def has_booleans(self) -> bool:
        """Whether true or false may occur in the text."""
        # Not a `cached_property`: before Python 3.12, it has one lock for all instances, on which
        # the event loop would wait while another request's large text is searched.
        if self._has_booleans is None:
            self._has_booleans = _contains(self._text, b"true", b"false")
        return self._has_booleans


def outline_of(body: bytes) -> Outline:
    """Split a request into an outline and arrays of numbers, if it has large ones."""
    return read_outline(body) or Outline(body, parse(body), body)


def read_outline(body: bytes) -> Outline | None:
    """Split a request; None if it has no large array of numbers, or may be invalid."""
    if NATIVE is None or len(body) < MIN_BYTES:
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
    return Outline(body, parsed, text, arrays)


def decode_outline(outline: Outline, specs: Specs) -> dict[str, Array] | None:
    """Return tensors by input name; None leaves it to the slow path."""
    content = outline.content
    if ("instances" in content) == ("inputs" in content):
        return None
    columns = (
        _columns_of_rows(outline, specs) if "instances" in content else _columns(outline, specs)
    )
    if columns is None:
        return None
    arrays: dict[str, Array] = {}
    try:
        for name, column in columns.items():
            array = array_of(outline, column, specs[name].dtype)
            if array is None:
                return None
            arrays[name] = array
    except StatusError:
        return None
    return arrays


def _arrays(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of large member arrays without strings."""
    # If the text is mostly strings, the usual parser is as fast.
    strings_left = len(body) // MIN_BYTES
    opened = body.find(b'"')
    while opened >= 0:
        strings_left -= 1
        if strings_left < 0:
            return
        closed = _end_of_string(body, opened + 1)
        opened = body.find(b'"', closed + 1) if closed >= 0 else -1
        limit = opened if opened >= 0 else len(body)
        if closed < 0 or limit - closed < MIN_BYTES:
            continue
        before = _BEFORE_ARRAY.match(body, closed + 1, limit)
        if before is None:
            continue
        brace = body.find(b"}", before.end(), limit)
        end = body.rfind(b"]", before.end(), brace if brace >= 0 else limit) + 1
        if end - before.end() >= MIN_BYTES:
            yield before.end(), end


def _end_of_string(body: bytes, start: int) -> int:
    """Return the position of the closing quotation mark of a string; -1 if it is missing."""
    end = body.find(b'"', start)
    if end < 0 or body[end - 1] != _BACKSLASH:
        return end
    while True:
        # In steps: other threads run between them, but not during a search.
        inside = _IN_STRING.match(body, start, start + STEP_BYTES)
        stop = start if inside is None else inside.end()
        if body[stop : stop + 1] == b'"':
            return stop
        if stop == start:
            return -1
        start = stop


def _columns(outline: Outline, specs: Specs) -> dict[str, Any] | None:
    value = outline.fill(outline.content["inputs"])
    if not is_row(value):
        return dict.fromkeys(specs, value) if len(specs) == 1 else None
    if not specs.keys() <= value.keys():
        return None
    return {name: outline.fill(value[name]) for name in specs}


def _columns_of_rows(outline: Outline, specs: Specs) -> dict[str, Any] | None:
    """Return the values of each input as a column; arrays that hold all rows stay as they are."""
    value = outline.fill(outline.content["instances"])
    single = dict.fromkeys(specs, value) if len(specs) == 1 else None
    if isinstance(value, NumberArray):
        return single
    if not isinstance(value, list) or not value:
        return None
    if not is_row(value[0]):
        return single
    try:
        columns = {name: [row[name] for row in value] for name in specs}
    except (KeyError, TypeError):
        return None
    if any(len(row) != len(specs) for row in value):
        return None
    if outline.arrays:
        columns = {name: list(map(outline.fill, column)) for name, column in columns.items()}
    return columns


def array_of(outline: Outline, column: Any, dtype: str) -> Array | None:
    """Convert nested lists or numbers of an outline to an array; None if that needs `whole`."""
    has_arrays = outline.arrays and isinstance(column, list)
    if has_arrays and any(isinstance(row, NumberArray) for row in column):
        column = _stacked(column)
        if column is None:
            return None
    if isinstance(column, NumberArray):
        if dtype in FLOATS:
            return round_floats(column.values, NUMPY_TYPES[dtype])
        bounds = INTEGER_RANGES.get(dtype)
        if bounds is None or not column.whole:
            return None
        return cast_integers(column.values, NUMPY_TYPES[dtype], bounds)
    if dtype != STRING and not outline.has_booleans:
        array = to_array_fast(column, dtype)
        if array is not None:
            return array
    return to_array(column, dtype)


def _stacked(rows: Sequence[Any]) -> NumberArray | None:
    if not all(isinstance(row, NumberArray) for row in rows):
        return None
    if any(row.values.shape != rows[0].values.shape for row in rows):
        return None
    return NumberArray(np.stack([row.values for row in rows]), all(row.whole for row in rows))


def to_array_fast(value: Any, dtype: str) -> Array | None:
    """Return the result of `to_array`, or None if only that can decide.

    ``value`` must not contain booleans: numpy would treat them as numbers.
    """
    # numpy would first create an array as wide as the longest string.
    if not isinstance(value, list) or not isinstance(leaf_of(value), int | float | list):
        return None
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return None
    if dtype in FLOATS and array.dtype.kind in "iuf":
        # Via float64, as in a text parser: rounding an integer twice may differ from rounding once.
        return round_floats(array.astype(np.float64, copy=False), NUMPY_TYPES[dtype])
    bounds = INTEGER_RANGES.get(dtype)
    if bounds is not None and array.size == 0:
        return array.astype(NUMPY_TYPES[dtype])
    if bounds is None or array.dtype.kind not in "iu" or not _within(array, bounds):
        return None
    return array.astype(NUMPY_TYPES[dtype], copy=False)


def round_floats(values: NDArray[np.float64], target: np.dtype[Any]) -> Array:
    """Convert to a floating-point type; values beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(target, copy=False)


def cast_integers(
    values: NDArray[np.float64], target: np.dtype[Any], bounds: tuple[int, int]
) -> Array | None:
    """Convert at least one integer, read as float64; None if out of bounds or perhaps rounded."""
    if not _within(values, _EXACT_INTEGERS):
        return None
    integers = values.astype(np.int64)
    return integers.astype(target, copy=False) if _within(integers, bounds) else None


def is_row(value: object) -> bool:
    """Whether ``value`` is an object that names inputs."""
    return isinstance(value, dict) and not is_b64(value)


def leaf_of(value: Any) -> Any:
    """Return the first element at the deepest level, or the empty list there."""
    while isinstance(value, list) and value:
        value = value[0]
    return value


def _within(array: Array, bounds: tuple[int, int]) -> bool:
    return int(array.min()) >= bounds[0] and int(array.max()) <= bounds[1]


def _contains(text: bytes, *words: bytes) -> bool:
    """Search a text for any of several words, in steps that let other threads run."""
    if len(text) <= STEP_BYTES:
        return any(word in text for word in words)
    return any(
        text.find(word, start, start + STEP_BYTES + len(word)) >= 0
        for word in words
        for start in range(0, len(text), STEP_BYTES)
    )

"""Rows of CSV to arrays. Pure functions.

Each row is an instance. Its values are one for each input, or, where the only input takes a list
for an instance, the elements of that. A cell that is empty or says so, such as ``NA``, is a number
that is missing: NaN.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from timonel.data.cells import is_missing
from timonel.serving.rest.tensors import display_name
from timonel.serving.runtimes.base import NUMPY_TYPES, STRING, Array, TensorSpec
from timonel.serving.status import invalid_argument

Specs = Mapping[str, TensorSpec]

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_OPEN = -1


def table(text: str, specs: Specs, *, header: bool | None = None) -> dict[str, Array]:
    """Return the tensors in rows of CSV by input name.

    Args:
        text: The rows. Empty lines count for nothing.
        specs: The signature's inputs. Without a header values are in their order; columns of a
            header that are none of them count for nothing.
        header: Whether the first row names the columns. Unless that is said, it does if it holds
            the name of an input; where one row is one list, it never does.

    Raises:
        StatusError: The text is no CSV, columns are missing, or a value is of another type.
    """
    rows = _rows(text)
    vector = _vector(specs)
    if vector is not None:
        return {vector: _matrix(rows[1:] if header else rows, vector, specs[vector])}
    if not specs or any(spec.shape not in {None, (_OPEN,), (_OPEN, 1)} for spec in specs.values()):
        raise invalid_argument(
            "expected a signature with inputs of one value a row, or with one input of one list a "
            f"row, for a body of text/csv, this one takes {described(specs)}; send JSON"
        )
    if header is None:
        header = bool(rows) and any(cell.strip() in specs for cell in rows[0])
    if header:
        columns = _named(rows[0] if rows else [], specs)
        width, rows = len(rows[0]), rows[1:]
    else:
        columns, width = {name: place for place, name in enumerate(specs)}, len(specs)
    _check_widths(rows, width, "" if header else f" ({', '.join(specs)})")
    return {
        name: _column([row[place] for row in rows], name, specs[name])
        for name, place in columns.items()
    }


def described(specs: Specs) -> str:
    """Return a signature's inputs in words."""
    return ", ".join(f"{name} ({_type(spec)})" for name, spec in specs.items()) or "nothing"


def _type(spec: TensorSpec) -> str:
    if spec.shape is None:
        return f"{display_name(spec.dtype)} of any shape"
    sizes = ",".join("?" if size < 0 else str(size) for size in spec.shape)
    return f"{display_name(spec.dtype)} [{sizes}]"


def _named(cells: Sequence[str], specs: Specs) -> dict[str, int]:
    found = [cell.strip() for cell in cells]
    if not found or specs.keys() - set(found):
        raise invalid_argument(
            f"expected the columns {', '.join(specs)}, got {', '.join(found) or 'none'}"
        )
    return {name: found.index(name) for name in specs}


def _vector(specs: Specs) -> str | None:
    """Return the name of the only input if one row is one list for it."""
    if len(specs) != 1:
        return None
    name, spec = next(iter(specs.items()))
    is_vector = spec.shape is not None and len(spec.shape) == 2 and spec.shape[1] != 1
    return name if is_vector else None


def _matrix(rows: Sequence[Sequence[str]], name: str, spec: TensorSpec) -> Array:
    assert spec.shape is not None, "an input of vectors has a rank"
    width = spec.shape[1]
    if width == _OPEN:
        width = len(rows[0]) if rows else 0
    _check_widths(rows, width, f" (a list for {name})")
    convert = _converter(spec.dtype)
    flat = [
        _cell(cell, convert, f"row {number}, value {place}")
        for number, row in enumerate(rows, start=1)
        for place, cell in enumerate(row, start=1)
    ]
    return _array(flat, spec.dtype).reshape(len(rows), width)


def _column(cells: Sequence[str], name: str, spec: TensorSpec) -> Array:
    convert = _converter(spec.dtype)
    flat = [
        _cell(cell, convert, f"row {number}, column {name}")
        for number, cell in enumerate(cells, start=1)
    ]
    array = _array(flat, spec.dtype)
    return array if spec.shape is None or len(spec.shape) == 1 else array[:, np.newaxis]


def _rows(text: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error as error:
        raise invalid_argument(f"expected CSV, got {error}") from None


def _check_widths(rows: Sequence[Sequence[str]], width: int, which: str) -> None:
    if not rows:
        raise invalid_argument("expected rows of CSV, got none")
    for number, row in enumerate(rows, start=1):
        if len(row) != width:
            raise invalid_argument(f"row {number}: expected {width} values{which}, got {len(row)}")


def _cell(cell: str, convert: Callable[[str], Any], place: str) -> Any:
    try:
        return convert(cell)
    except _NotThatError as error:
        hint = "; if it is a header, say Content-Type: text/csv; header=present"
        is_first = place.startswith("row 1,") and cell.strip()
        raise invalid_argument(
            f"{place}: expected {error}, got {cell!r}{hint if is_first else ''}"
        ) from None


class _NotThatError(Exception):
    """A cell does not read as what is named here."""


def _converter(dtype: str) -> Callable[[str], Any]:
    if dtype == STRING:
        return str.encode
    if dtype == "DT_BOOL":
        return _boolean
    numpy_type = NUMPY_TYPES[dtype]
    if np.issubdtype(numpy_type, np.integer):
        bounds = np.iinfo(numpy_type)
        return lambda cell: _integer(cell, bounds)
    return _number


def _boolean(cell: str) -> bool:
    try:
        return _BOOLEANS[cell.strip().lower()]
    except KeyError:
        raise _NotThatError("true or false") from None


def _integer(cell: str, bounds: np.iinfo[Any]) -> int:
    try:
        value = int(cell)
    except ValueError:
        value = None
    if value is None or not bounds.min <= value <= bounds.max:
        raise _NotThatError(f"a whole number from {bounds.min} to {bounds.max}")
    return value


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        if is_missing(cell):
            return math.nan
        raise _NotThatError("a number") from None


def _array(flat: list[Any], dtype: str) -> Array:
    if dtype == STRING:
        array = np.empty(len(flat), object)
        array[:] = flat
        return array
    with np.errstate(over="ignore"):
        return np.array(flat, NUMPY_TYPES[dtype])

"""The tensors of a request whose large arrays of numbers were read beforehand. Pure.

Gives what `timonel.serving.rest.codec` gives for the whole text, or gives up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from timonel.serving.rest.outline import Numbers, Outline
from timonel.serving.rest.tensors import (
    FLOATS,
    Allocate,
    allocate_plainly,
    cast_integers,
    to_array_fast,
    write_floats,
)
from timonel.serving.runtimes.base import Array, TensorSpec
from timonel.serving.signature_check import fits

Specs = Mapping[str, TensorSpec]


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

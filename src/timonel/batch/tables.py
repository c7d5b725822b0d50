"""Columns of tables as arrays for a model's inputs."""

from __future__ import annotations

import bisect
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timonel.batch.inputs import local_copy
from timonel.data.sources.arrow import as_texts, is_text, text_of
from timonel.data.sources.columns import (
    Kinds,
    NumberColumn,
    is_missing,
    parse_number,
    trim,
    why_unusable,
)
from timonel.data.sources.csvfile import CsvFile
from timonel.serving.codec.tensors import to_array
from timonel.serving.signature import NUMPY_TYPES, STRING, Array, TensorSpec
from timonel.serving.status import StatusError, invalid_argument

_logger = logging.getLogger(__name__)

Column = Any
"""Values of rows: a list from JSON or tf.train.Examples, or an array of Arrow."""

_FLOATS = {"DT_FLOAT", "DT_DOUBLE", "DT_HALF", "DT_BFLOAT16"}


@dataclass(frozen=True)
class CsvRows:
    """Rows of a CSV file.

    Args:
        table: The rows, as text, without ragged ones.
        ragged: Reasons of rows with too many or too few values, by number from 0.
    """

    table: pa.Table
    ragged: Mapping[int, str]

    def __len__(self) -> int:
        return int(self.table.num_rows) + len(self.ragged)

    def position(self, number: int) -> int:
        """Return the position in the table for a row with a number."""
        return number - bisect.bisect_left(self._numbers, number)

    @functools.cached_property
    def _numbers(self) -> Sequence[int]:
        return sorted(self.ragged)


@functools.lru_cache(maxsize=1)
def read_csv(uri: str, modified: int) -> CsvRows:
    """Read a CSV file; the last one is kept in memory.

    Args:
        modified: Number that changes when the file does.
    """
    file = CsvFile(local_copy(uri, modified))
    found = file.read()
    for warning in found.warnings:
        _logger.warning("%s", warning)
    ragged = file.ragged() if found.rejected else {}
    return CsvRows(found.table, {n: f"{error.key}: {error.reason}" for n, error in ragged.items()})


def to_input(column: Column, spec: TensorSpec, name: str) -> Array:
    """Return a column as an input of the model, [B, ...].

    Missing numbers are NaN and missing text is empty, as in datasets.
    """
    try:
        array = (
            _from_arrow(column, spec) if isinstance(column, pa.Array) else _from_list(column, spec)
        )
        _check_finite(array, column, spec)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise invalid_argument(f"column {name}: {error}") from error
    except StatusError as error:
        raise invalid_argument(f"column {name}: {error.message}") from error
    sizes = spec.shape[1:] if spec.shape else ()
    if array.ndim == 2 and len(sizes) > 1 and -1 not in sizes:
        array = array.reshape(len(array), *sizes)  # tf.train.Examples are flat
    return array


def _check_finite(array: Array, column: Column, spec: TensorSpec) -> None:
    """Reject infinite numbers, as a conversion does; lists may have them, such as masks."""
    if spec.dtype in _FLOATS and array.size == len(array):
        rows = np.flatnonzero(np.isinf(array.astype(np.float64)))
        if len(rows):
            value = column[rows[0]]
            raise ValueError(why_unusable(value.as_py() if isinstance(value, pa.Scalar) else value))


def _from_list(values: Sequence[Any], spec: TensorSpec) -> Array:
    if spec.dtype == STRING and all(isinstance(value, bytes) for value in values):
        return _objects(values)
    if spec.dtype == STRING:
        values = [text_of(value) if is_scalar(value) else value for value in values]
    elif spec.dtype in _FLOATS:
        values = [_number(value) if is_scalar(value) else value for value in values]
    return to_array(list(values), spec.dtype)


def is_scalar(value: Any) -> bool:
    """Tell whether a value of JSON is neither a list nor an object."""
    return value is None or isinstance(value, bool | int | float | str)


def _number(value: Any) -> float:
    """Return a value of a column of numbers, as a conversion does."""
    if value is None:
        return math.nan
    if isinstance(value, str) and not is_missing(value) and math.isnan(parse_number(value)):
        raise ValueError(why_unusable(value))
    return parse_number(value) if isinstance(value, str) else float(value)


def _from_arrow(column: pa.Array, spec: TensorSpec) -> Array:
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _from_lists(column, spec)
    if spec.dtype == STRING:
        is_plain = is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        texts = column if is_plain else as_texts(column)
        return _objects(pc.fill_null(pc.cast(texts, pa.binary()), b"").to_pylist())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _from_text(pc.cast(column, pa.string()), spec)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = _seconds(column)
    if spec.dtype in _FLOATS:
        numbers = pc.fill_null(pc.cast(column, pa.float64(), safe=False), float("nan"))
        return _as_type(numbers.to_numpy(zero_copy_only=False), spec)
    if column.null_count:
        raise ValueError(f"expected {spec.dtype}, got a missing value")
    whole = pc.cast(column, pa.from_numpy_dtype(NUMPY_TYPES[spec.dtype]))
    return _as_type(whole.to_numpy(zero_copy_only=False), spec)


def _seconds(dates: pa.Array) -> pa.Array:
    """Return dates as in datasets: seconds since 1970."""
    zone = dates.type.tz if pa.types.is_timestamp(dates.type) else None
    # Rounded down before the cast, which rounds towards zero.
    whole = pc.floor_temporal(dates, unit="second")
    return pc.cast(pc.cast(whole, pa.timestamp("s", zone)), pa.int64())


def _from_text(column: pa.Array, spec: TensorSpec) -> Array:
    if spec.dtype not in _FLOATS:
        trimmed = trim(column)
        return _from_arrow(
            pc.cast(trimmed, pa.from_numpy_dtype(NUMPY_TYPES[spec.dtype])),
            spec,
        )
    kinds = Kinds.of(column)
    if rows := kinds.unusable():
        raise ValueError(why_unusable(column[rows[0]].as_py()))
    return _as_type(NumberColumn.of(kinds).values, spec)


def _from_lists(column: pa.Array, spec: TensorSpec) -> Array:
    flat = column.flatten()
    sizes = pc.unique(pc.list_value_length(column))
    if column.null_count or len(sizes) != 1 or pa.types.is_nested(flat.type):
        return _from_list(column.to_pylist(), spec)
    return _from_arrow(flat, spec).reshape(len(column), -1)


def _as_type(values: Any, spec: TensorSpec) -> Array:
    with np.errstate(over="ignore"):  # infinite numbers are rejected
        return np.ascontiguousarray(values, NUMPY_TYPES[spec.dtype])


def _objects(values: Sequence[bytes]) -> Array:
    # np.array(values, object) would turn equal lengths into other shapes for nested values.
    array = np.empty(len(values), object)
    array[:] = values
    return array

"""Columns of Arrow tables, of any type, as texts or numbers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timonel.data.sources.columns import EXACT_INTEGERS, trim


def usable(column: Any) -> tuple[Any | None, str]:
    """Return a column as an array of texts or numbers, or else why it is not usable.

    Missing texts are empty. True and false are 1 and 0.
    """
    values = _plain(column)
    kind = values.type
    if pa.types.is_string(kind):
        return pc.fill_null(values, ""), ""
    if pa.types.is_boolean(kind):
        return pc.cast(values, pa.int8()), ""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return values, ""
    if pa.types.is_decimal(kind):
        return pc.cast(values, pa.float64()), ""
    if pa.types.is_temporal(kind):
        return None, "dates"
    is_empty = pa.types.is_null(kind)
    return None, "no values" if is_empty else f"values of the type {kind} are not supported"


def is_text(kind: Any) -> bool:
    """Tell whether an Arrow type is text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def as_texts(column: Any) -> Any:
    """Return a column as an array of trimmed texts; missing values are empty.

    Whole numbers are written without a point, also in a column of floats.

    Raises:
        pa.ArrowNotImplementedError: Values of the column's type have no text.
    """
    values = _plain(column)
    if pa.types.is_floating(values.type):
        values = pc.cast(values, pa.float64())
        values = pc.if_else(pc.is_nan(values), None, values)
        exact = pc.and_(
            pc.equal(values, pc.floor(values)), pc.less_equal(pc.abs(values), EXACT_INTEGERS)
        )
        if pc.all(exact).as_py():
            values = pc.cast(values, pa.int64())
    return trim(pc.fill_null(pc.cast(values, pa.string()), ""))


def _plain(column: Any) -> Any:
    """Return a column as one array, without dictionary and of the usual type for text."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        values = pc.cast(values, pa.string())
    return values

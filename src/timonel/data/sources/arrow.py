"""Columns of Arrow tables, of any type, as texts or numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timonel.data.schema import ColumnType
from timonel.data.sources.columns import EXACT_INTEGERS, count, trim
from timonel.data.sources.imagefile import image_format

_PLAIN = 1e-4, 1e10
"""Python and Arrow write floats from the first to below the second without an exponent."""


def usable(column: Any, *, is_category: bool = False) -> tuple[Any | None, str]:
    """Return a column as an array of texts or numbers, or else why it is not usable.

    Missing texts are empty. True and false are 1 and 0, unless the column is a category.
    """
    values = plain(column)
    kind = values.type
    if is_category and is_word(kind):
        return as_texts(values), ""
    if pa.types.is_string(kind):
        return pc.fill_null(values, ""), ""
    if pa.types.is_boolean(kind):
        return pc.cast(values, pa.int8()), ""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return values, ""
    if pa.types.is_decimal(kind):
        return pc.cast(values, pa.float64()), ""
    return None, _reason(kind)


def _reason(kind: Any) -> str:
    """Return why values of a type are neither texts nor numbers."""
    if _is_date(kind):
        return "dates"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    return "no values" if pa.types.is_null(kind) else f"values of the type {kind}"


def kind_of(column: Any) -> ColumnType | None:
    """Return the kind of a column of dates, images or lists of numbers; None for other types.

    Bytes, also in structures, are images if the first ones are.
    """
    kind = value_type(column.type)
    if _is_date(kind):
        return "date"
    first = next((value.as_py() for value in column if value.is_valid), None)
    content = first.get("bytes") if isinstance(first, dict) else first
    if isinstance(content, bytes):
        return "image" if image_format(content[:12]) else None
    if _is_list(kind) and (
        pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)
    ):
        return "numbers"
    return None


def _is_date(kind: Any) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def has_several_labels(column: Any) -> bool:
    """Tell whether values of a column are lists, or texts with bars between labels."""
    values = plain(column)
    if pa.types.is_string(values.type):
        return count(pc.match_substring(values, "|")) > 0
    return _is_list(values.type)


def _is_list(kind: Any) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def is_text(kind: Any) -> bool:
    """Tell whether an Arrow type is text."""
    kind = value_type(kind)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_word(kind: Any) -> bool:
    """Tell whether values of an Arrow type, but no text, have a word: see `as_texts`."""
    kind = value_type(kind)
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def value_type(kind: Any) -> Any:
    """Return the type of a column's values, also of one with a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def as_texts(column: Any) -> Any:
    """Return a column as an array of trimmed texts; missing values are empty.

    The text of a value depends on nothing else, so that conversion and prediction agree: ``true``,
    whole numbers without a point, other floats with the digits that their type needs.
    """
    values = plain(column)
    if pa.types.is_floating(values.type):
        texts = _float_texts(values)
    else:
        texts = pc.cast(values, pa.string())
        if pa.types.is_timestamp(values.type) or pa.types.is_time(values.type):
            texts = pc.replace_substring_regex(texts, r"\.0+(Z|[+-]\d+)?$", r"\1")
    return trim(pc.fill_null(texts, ""))


def as_values(column: Any) -> list[Any]:
    """Return the values of a column; in lists, and of numbers and dates, their words."""
    values = plain(column)
    if _is_list(values.type):
        words = iter(as_values(values.flatten()))
        lengths = pc.list_value_length(values).to_pylist()
        return [None if n is None else [*itertools.islice(words, n)] for n in lengths]
    found: list[Any] = (as_texts(values) if is_word(values.type) else values).to_pylist()
    return found


def _float_texts(values: Any) -> Any:
    if pa.types.is_float16(values.type):
        values = pc.cast(values, pa.float32())
    values = pc.if_else(pc.is_nan(values), None, values)
    wide = pc.cast(values, pa.float64())
    is_whole = pc.and_(pc.equal(wide, pc.floor(wide)), pc.less_equal(pc.abs(wide), EXACT_INTEGERS))
    whole = pc.cast(pc.if_else(is_whole, wide, None), pa.int64())
    return pc.coalesce(pc.cast(whole, pa.string()), pc.cast(values, pa.string()))


def text_of(value: Any) -> str:
    """Return the text of one value of Python, as `as_texts`; texts as they are."""
    if isinstance(value, int | str) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and _PLAIN[0] <= abs(value) < _PLAIN[1]:
        return str(int(value)) if value.is_integer() else float.__repr__(value)  # 100 times faster
    try:
        found: str = as_texts(pa.array([value], from_pandas=True))[0].as_py()
    except pa.ArrowException:  # no type of Arrow
        return str(value)
    return found


def with_names(numbers: Any, names: Sequence[str]) -> Any:
    """Return the names of classes instead of their numbers, or of lists of numbers.

    Other numbers, such as -1, are missing labels.
    """
    if _is_list(numbers.type):
        lists = numbers.combine_chunks() if isinstance(numbers, pa.ChunkedArray) else numbers
        lengths = pa.array([0, *pc.fill_null(pc.list_value_length(lists), 0).to_pylist()])
        offsets = pc.cast(pc.cumulative_sum(lengths), pa.int32())
        return pa.ListArray.from_arrays(offsets, with_names(lists.flatten(), names))
    is_known = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, len(names)))
    return pc.take(pa.array(names, pa.string()), pc.if_else(is_known, numbers, None))


def with_column(table: Any, name: str, values: Any) -> Any:
    """Return the table with other values of a column."""
    return table.set_column(table.column_names.index(name), name, values)


def plain(column: Any) -> Any:
    """Return a column as one array, without dictionary and of the usual type for text."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        values = pc.cast(values, pa.string())
    return values

"""Infer the role of table columns.

A column is numeric if most of its values are numbers; rows with other values are rejected. Values
of several words that hardly ever repeat are text. Single words that hardly ever repeat would become
one category per row, and dates may be unclear: the user sets the type of such a column, or it is
dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timonel.data.schema import (
    IMAGE_ENDINGS,
    PLAIN_NUMBERS,
    ColumnType,
    columns_option,
    split_named,
)
from timonel.data.sources.columns import (
    EXACT_INTEGERS,
    Kinds,
    NumberColumn,
    count,
    shorten,
    trim,
)
from timonel.data.sources.kinds.base import MISSING
from timonel.data.sources.kinds.dates import (
    COMPACT,
    DAY_FIRST,
    MONTH_FIRST,
    SHORT_YEAR,
    UNAMBIGUOUS,
    YEAR_LAST,
)

FEW_ROWS = 20
"""With fewer values than this, a lack of repetition proves nothing."""
_INTEGER = r"^[+-]?\d+(\.0*)?$"
_CODE = r"^0\d+$"
_ALMOST = (
    r"^[$€£¥]?\s?[+-]?[$€£¥]?"
    r"(\d{1,3}([,' \x{2019}\x{a0}\x{202f}]?\d{3})*([.,]\d+)?|\d{1,3}(\.\d{3})+,\d+)\s?[$€£¥%]?$"
)
"""Numbers with a currency, percent sign, thousands separators or decimal comma."""
_ID = re.compile(r"(^|[_ -])[iI][dD]$|[a-z]I[dD]$|^(Unnamed: \d+|index|level_\d+)?$")
"""Names of ids, and of an index of pandas, which is the first column without a name in CSV."""
_IMAGE = rf"(?i)({'|'.join(map(re.escape, IMAGE_ENDINGS))})$"
_FIRST_DAY = 19_000_101
_TEXT_WORDS = 3
_FEW_TEXTS = 20
"""Up to this many different values of several words are clearly categories."""


@dataclass(frozen=True)
class Inference:
    """Inferred role of a column; a note has the reason or a problem, unless obvious.

    Doubtful: values are lost, so that the user should check. ``first_bad`` is the row of the first
    value that is not a number, in a mixed column.
    """

    role: ColumnType
    note: str = ""
    is_doubtful: bool = False
    first_bad: int | None = None
    cure: str = ""


def infer(kinds: Kinds, name: str = "", *, is_typed: bool = False) -> Inference:
    """Return how to use a column.

    A column ``split`` with split names assigns the splits. Texts of typed files are not numbers.
    """
    known = len(kinds.values) - count(kinds.missing)
    numbers, infinite, bad = count(kinds.number), count(kinds.infinite), count(kinds.bad)
    if not numbers + bad:
        return Inference("drop", "no finite values" if infinite else "no values", True)
    if name.strip().lower() == "split" and (splits := _splits(kinds, name)) is not None:
        return splits
    if not kinds.is_text:
        return _numeric(kinds, name, known)
    codes = has_codes(kinds)
    if numbers > bad + infinite and not codes and not _are_identifiers(kinds, bad, known):
        infer_numbers = _numbers_as_text if is_typed else _numeric
        return infer_numbers(kinds, name, known)
    if count(pc.match_substring_regex(kinds.values, _IMAGE)) == known:
        return Inference("image", "names of image files")
    return _words(kinds, name, known, numbers, codes=codes)


def _splits(kinds: Kinds, name: str) -> Inference | None:
    """Return the inference of a column with names of splits; None if it has none."""
    others = unassigned(kinds.values)
    if not others:
        return Inference("split", "the split of each row")
    if not any(map(split_named, pc.unique(trim(kinds.values)).to_pylist())):
        return None
    # As a category, it would tell a model the split of each row.
    note = f"names of splits, but also {shorten(others[0])}, so that it assigns none"
    cure = f"write train, validation, test or discard, or use {columns_option(name, 'category')}"
    return Inference("drop", note, True, cure=cure)


def _numeric(kinds: Kinds, name: str, known: int) -> Inference:
    values = kinds.values
    if pa.types.is_integer(values.type) and pc.min(values).as_py() >= _FIRST_DAY:
        values = pc.cast(values, pa.string())
    is_text = pa.types.is_string(values.type)
    is_day = pc.match_substring_regex(values, COMPACT) if is_text else pa.array([], pa.bool_())
    if count(is_day) < known:
        return Inference("numeric")
    note = f"numbers that look like dates, such as {shorten(values[_first(is_day)].as_py())}"
    cure = f"if they are, use {columns_option(name, 'date')}"
    return Inference("numeric", note, True, cure=cure)


def _numbers_as_text(kinds: Kinds, name: str, known: int) -> Inference:
    """Return the inference of a column of the type text that contains numbers."""
    found = _words(kinds, name, known, 0, codes=False)
    note = "; ".join(filter(None, ["numbers of the type text", found.note]))
    cure = f"read them as numbers with {columns_option(name, 'number')}"
    return Inference(found.role, note, True, cure=cure)


def first_rounded(kinds: Kinds) -> int | None:
    """Return the row of the first integer that a 32-bit float rounds; None in other columns."""
    values = NumberColumn.of(kinds).values
    known = ~np.isnan(values)
    size = np.abs(values)
    whole: Any = known
    if kinds.is_text:
        matches = pc.match_substring_regex(kinds.values, _INTEGER)
        whole = matches.to_numpy(zero_copy_only=False)
    elif pa.types.is_floating(kinds.values.type):
        whole = (values == np.floor(values)) & (size < EXACT_INTEGERS)
    if not np.all(whole[known]):
        return None  # decimals are rounded anyway
    rounded = np.flatnonzero((size >= EXACT_INTEGERS) | (known & (values.astype("f4") != values)))
    exact = ((row, Decimal(kinds.values[row].as_py())) for row in rounded.tolist())
    return next((row for row, value in exact if value != int(np.float32(values[row]))), None)


def rounding(kinds: Kinds, row: int) -> str:
    """Describe how a 32-bit float rounds the integer of a row."""
    value = kinds.values[row].as_py()
    return f"integers are rounded to 32-bit floats, such as {value} to {int(np.float32(value))}"


def is_row_id(kinds: Kinds, name: str) -> bool:
    """Tell whether a column numbers its rows with distinct whole numbers.

    They must be consecutive, unless the column has a name such as ``customer_id`` or is an index of
    pandas. A named column needs at least `FEW_ROWS` values.
    """
    least = FEW_ROWS if name.strip() else 1
    if len(kinds.values) < least or count(kinds.number) < len(kinds.values):
        return False
    values = pc.cast(kinds.values, pa.float64(), safe=False).to_numpy()
    if not np.all(values == np.floor(values)):
        return False
    if np.all(np.diff(values) == 1):
        return True
    return bool(_ID.search(name.strip())) and len(np.unique(values)) == len(values)


def has_codes(kinds: Kinds) -> bool:
    """Tell whether texts have leading zeros, as codes do and numbers do not."""
    return count(pc.match_substring_regex(kinds.values, _CODE)) > 0


def _words(kinds: Kinds, name: str, known: int, numbers: int, *, codes: bool) -> Inference:
    if (dates := _dates(kinds, name, known)) is not None:
        return dates
    different = len(pc.unique(pc.filter(kinds.values, pc.invert(kinds.missing))))
    is_unrepeated = known >= FEW_ROWS and different * 2 > known
    first = _first(kinds.bad)
    cure = _cure(kinds)
    if not codes and first is not None and (cure or numbers * 2 >= known):
        value = shorten(kinds.values[first].as_py())
        note = f"{count(kinds.bad):,} of {known:,} values are not numbers, such as {value}"
        role: ColumnType = "drop" if is_unrepeated else "categorical"
        return Inference(role, note, True, first, cure)
    spaces = pc.sum(pc.count_substring_regex(kinds.values, r"\s+")).as_py() or 0
    is_text = spaces / known >= _TEXT_WORDS - 1
    what = f"{different:,} different in {known:,} values"
    if is_unrepeated and is_text:
        return Inference("text", f"free text: {what}", cure=_otherwise(name))
    if is_unrepeated:
        cure = f"keep it with {columns_option(name, 'text')}, or =category"
        return Inference("drop", f"identifiers or free text: {what}", True, cure=cure)
    if is_text and (different > _FEW_TEXTS or different == known):
        cure = f"if they are free text, use {columns_option(name, 'text')}"
        return Inference("categorical", f"values of several words: {what}", True, cure=cure)
    return Inference("categorical", "a leading zero: codes, not numbers" if codes else "")


def _dates(kinds: Kinds, name: str, known: int) -> Inference | None:
    """Return the inference of a column of dates, also of those that are not clear."""
    is_last = pc.match_substring_regex(kinds.values, YEAR_LAST)
    clear, unclear = count(pc.match_substring_regex(kinds.values, UNAMBIGUOUS)), count(is_last)
    if (others := known - clear - unclear) * 10 > known:
        return None
    role: ColumnType = "date"
    note, cure = "dates", _otherwise(name)
    if unclear:
        values = pc.filter(kinds.values, is_last)
        shown = shorten(values[0].as_py())
        days, months = (
            count(pc.match_substring_regex(values, each)) for each in (DAY_FIRST, MONTH_FIRST)
        )
        if count(pc.match_substring_regex(values, SHORT_YEAR)):
            note, cure = f"dates with years of two digits, such as {shown}", "write four"
            return Inference("drop", note, True, cure=cure)
        if bool(days) == bool(months):
            what = "both orders" if days else "an unknown order"
            note = f"dates with {what} of day and month, such as {shown}"
            cure = f"name it with {columns_option(name, 'dmy')} or =mdy"
            return Inference("drop", note, True, cure=cure)
        role = "dmy" if days else "mdy"
        note = f"dates with the {'day' if days else 'month'} first"
    if others * 100 > known:
        note += f" in {known - others:,} of {known:,} values"
        cure = f"reject the other rows with {columns_option(name, role)}"
        return Inference("drop", note, True, cure=cure)
    return Inference(role, note, cure=cure)


def _otherwise(name: str) -> str:
    return f"change it with {columns_option(name, 'category')} or =drop"


def _are_identifiers(kinds: Kinds, bad: int, known: int) -> bool:
    """Tell whether a column has numbers and many different other values, such as ticket codes."""
    if bad * 10 <= known or known < FEW_ROWS or _cure(kinds):
        return False
    others = len(pc.unique(pc.filter(kinds.values, kinds.bad)))
    different = len(pc.unique(pc.filter(kinds.values, pc.invert(kinds.missing))))
    return others * 2 > bad and different * 2 > known


def unassigned(texts: Any) -> list[str]:
    """Return the distinct values that are not split names.

    Missing values, ``unassigned`` and ``discard`` are allowed.
    """
    different = pc.unique(trim(texts)).to_pylist()
    known = {"unassigned", "discard", *MISSING}
    return [word for word in different if split_named(word) is None and word.lower() not in known]


def _cure(kinds: Kinds) -> str:
    """Return a remedy if nine tenths of the bad values are formatted numbers, else ''."""
    if not kinds.is_text:
        return ""
    almost = count(pc.and_(kinds.bad, pc.match_substring_regex(kinds.values, _ALMOST)))
    if not almost or almost * 10 < count(kinds.bad) * 9:
        return ""
    return PLAIN_NUMBERS


def _first(mask: Any) -> int | None:
    row: int = pc.index(mask, True).as_py()
    return None if row < 0 else row

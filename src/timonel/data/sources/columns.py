"""Classify and parse columns of numbers and words with Arrow and NumPy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timonel.data.schema import ColumnType, NumericColumn
from timonel.data.sources.kinds.base import FLOAT32_MAX, MISSING
from timonel.data.statistics import NumberStatistics, WordStatistics
from timonel.units import counted

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
EXACT_INTEGERS = 1 << 53
"""Limit of whole numbers that 64-bit floats represent exactly."""
_INFINITE = r"(?i)^[+-]?inf(inity)?$"
_NUMBER = re.compile(NUMBER, re.ASCII)


@dataclass(frozen=True)
class Kinds:
    """A column's values with masks of the missing, numeric and infinite ones.

    The values are trimmed texts, or numbers of a typed column.
    """

    values: Any
    missing: Any
    number: Any
    infinite: Any

    @classmethod
    def of(cls, values: Any) -> Kinds:
        """Classify each value of a column from `arrow.usable`."""
        if not pa.types.is_string(values.type):
            return cls._of_numbers(values)
        trimmed = trim(values)
        lower = pc.utf8_lower(trimmed)
        number = pc.match_substring_regex(trimmed, NUMBER)
        size = pc.abs(pc.cast(pc.if_else(number, trimmed, None), pa.float64()))
        too_large = pc.fill_null(pc.greater(size, FLOAT32_MAX), fill_value=False)
        return cls(
            trimmed,
            pc.is_in(lower, value_set=pa.array(MISSING)),
            pc.and_not(number, too_large),
            pc.or_(too_large, pc.match_substring_regex(trimmed, _INFINITE)),
        )

    @classmethod
    def _of_numbers(cls, values: Any) -> Kinds:
        numbers = pc.cast(values, pa.float64(), safe=False)
        missing = pc.fill_null(pc.is_nan(numbers), fill_value=True)
        infinite = pc.fill_null(pc.greater(pc.abs(numbers), FLOAT32_MAX), fill_value=False)
        return cls(values, missing, pc.invert(pc.or_(missing, infinite)), infinite)

    @property
    def is_text(self) -> bool:
        """Whether the values are texts."""
        return bool(pa.types.is_string(self.values.type))

    def unusable(self) -> list[int]:
        """Return the rows that are neither missing nor finite numbers."""
        mask = pc.or_(self.bad, self.infinite).to_numpy(zero_copy_only=False)
        rows: list[int] = np.flatnonzero(mask).tolist()
        return rows

    @property
    def bad(self) -> Any:
        """Mask of values that are neither missing nor numbers nor infinite."""
        return pc.invert(pc.or_(pc.or_(self.missing, self.number), self.infinite))

    def described_as(self, role: ColumnType) -> str:
        """Describe the values of a column of numbers or words; others need only a reason."""
        if role not in {"numeric", "categorical"}:
            return ""
        missing = count(self.missing)
        known, numbers = len(self.values) - missing, count(self.number)
        if role == "categorical":
            words = len(pc.unique(pc.filter(self.values, pc.invert(self.missing))))
            found = f"{counted(words, 'distinct word')} in {counted(known, 'value')}"
        elif numbers == known:
            found = f"numbers in all {known:,} values"
        else:
            found = f"numbers in {numbers:,} of {known:,} values"
        return found + (f", {missing:,} missing" if missing else "")


@dataclass(frozen=True)
class NumberColumn:
    """Column of numbers; missing values are NaN."""

    values: npt.NDArray[np.float64]

    @classmethod
    def of(cls, kinds: Kinds) -> Self:
        """Convert values to floats; others are missing."""
        numbers = pc.cast(pc.if_else(kinds.number, kinds.values, None), pa.float64(), safe=False)
        return cls(numbers.to_numpy(zero_copy_only=False).astype(np.float64))

    def __getitem__(self, row: int) -> float:
        return float(self.values[row])

    @property
    def is_rounded(self) -> bool:
        """Whether whole numbers are too large for an exact float."""
        return bool(np.any(np.abs(self.values) >= EXACT_INTEGERS))


@dataclass(frozen=True)
class WordArray:
    """Column of words; missing values are empty."""

    codes: npt.NDArray[np.int32]
    words: list[str]

    @classmethod
    def of(cls, texts: Any) -> Self:
        """Trim and dictionary-encode the texts."""
        encoded = pc.dictionary_encode(trim(texts))
        return cls(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())

    def __getitem__(self, row: int) -> str:
        return self.words[int(self.codes[row])]

    def texts(self) -> Iterator[str]:
        """Yield the word of each row."""
        return (self.words[code] for code in self.codes)


def numeric_column(name: str, numbers: NumberStatistics) -> NumericColumn:
    """Return the description of a numeric column."""
    return NumericColumn(name=name, missing=numbers.missing, **numbers.summary())


def vocabulary_of(words: WordStatistics, given: tuple[str, ...], most: int) -> dict[str, Any]:
    """Return the given vocabulary, or the most frequent words, sorted, and how many it lacks."""
    if given:
        return {"vocabulary": given}
    known = [word for word, _ in words.ranked()]
    return {"vocabulary": tuple(sorted(known[:most])), "dropped": max(0, len(known) - most)}


Values = NumberColumn | WordArray


def is_missing(text: str) -> bool:
    """Tell whether a cell is empty or marks its value as missing."""
    return text.strip().lower() in MISSING


def parse_number(text: str) -> float:
    """Return the number in a cell; NaN if missing or not finite."""
    word = text.strip()
    value = float(word) if _NUMBER.match(word) else math.nan
    return value if abs(value) <= FLOAT32_MAX else math.nan


def why_unusable(value: object) -> str:
    """Describe a value that is no finite number of 32 bits."""
    text = str(value).strip()
    if _NUMBER.match(text):
        return f"{shorten(text)} is too large for a 32-bit float"
    return f"{shorten(text)} is not a finite number"


def trim(texts: Any) -> Any:
    """Return the values as one Arrow array, without surrounding spaces."""
    combined = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    return pc.utf8_trim_whitespace(combined)


def count(mask: Any) -> int:
    """Return the number of true values in a mask."""
    return int(pc.sum(mask).as_py() or 0)


def shorten(value: str) -> str:
    """Return a value quoted for a message, truncated after 40 characters."""
    return repr(value if len(value) <= 40 else f"{value[:40]}...")

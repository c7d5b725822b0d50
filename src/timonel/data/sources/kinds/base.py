"""Interface of the kinds of columns.

A kind parses one value at a time, as text or as typed by its source: numbers, bytes, dates, lists,
dictionaries; None is missing. `timonel.data.preprocess` decodes the stored features in TensorFlow.
"""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from timonel.data.examples import Feature
from timonel.data.schema import Column, ColumnType
from timonel.data.statistics import NumberStatistics, Statistics, ValueFacts

ReadFile = Callable[[str], bytes]
"""Return the content of a file that a value names."""

MISSING = ("", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "?")
"""Lower-case words that stand for a missing value."""

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Value:
    """Parsed value of a column: the feature to store, and facts for the statistics."""

    feature: Feature
    facts: ValueFacts


class Kind(abc.ABC):
    """Kind of a table column. Immutable."""

    type: ClassVar[ColumnType]

    @abc.abstractmethod
    def parse(self, value: Any, read: ReadFile) -> Value:
        """Parse and verify one value, a text or typed by its source; None if it is missing.

        A ValueError says what was expected. ``read`` reads a file that the value names, which may
        be unusable, or not readable now: an OSError.
        """

    @abc.abstractmethod
    def describe(self, name: str, everything: Statistics, train: Statistics) -> Column:
        """Return the description of a column."""


def is_empty(value: Any) -> bool:
    """Tell whether a value is missing: None, NaN or text of spaces."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())


def expected(what: str, value: Any) -> ValueError:
    """Return the error for a value that is not of a kind."""
    text = repr(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return ValueError(f"expected {what}, got {shown}")


def parse_list(value: Any, what: str) -> list[Any]:
    """Return a list, or one written as JSON."""
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except ValueError:
            raise expected(what, value) from None
    if hasattr(found, "tolist"):  # an array
        found = found.tolist()
    if not isinstance(found, list | tuple):
        raise expected(what, value)
    return list(found)


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number that float32 can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= FLOAT32_MAX


FLOAT32_MAX = 3.4028235e38
"""Larger numbers are infinite as float32."""


def lengths_of(name: str, statistics: Statistics) -> NumberStatistics:
    """Return the statistics of a column's lengths."""
    return statistics.lengths.get(name, NumberStatistics())

"""Numbers and missing values in the cells of a CSV file, without Arrow.

A conversion applies the same words and patterns to whole columns, see `sources.inference`.
"""

from __future__ import annotations

import math
import re

MISSING = ("", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "?")
"""Words, in lower case, that stand for a missing value."""

PLAIN_NUMBERS = "write plain numbers such as 1234.50, without currency, percent or thousands signs"
"""The cure of a column of numbers that are written in another way."""

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
FLOAT32_MAX = 3.4028235e38
"""A number beyond this counts as infinite, and as missing."""

_NUMBER = re.compile(NUMBER, re.ASCII)


def is_missing(text: str) -> bool:
    """Tell whether a cell is empty or says that its value is missing."""
    return text.strip().lower() in MISSING


def number(text: str) -> float:
    """Return the number in a cell; NaN if it is missing, not a number, or not finite."""
    word = text.strip()
    value = float(word) if _NUMBER.match(word) else math.nan
    return value if abs(value) <= FLOAT32_MAX else math.nan

"""Parse numbers and missing values in CSV cells, without Arrow.

`sources.inference` applies the same words and patterns to whole columns.
"""

from __future__ import annotations

import math
import re

MISSING = ("", "na", "n/a", "#n/a", "nan", "-nan", "null", "none", "?")
"""Lower-case words that stand for a missing value."""

PLAIN_NUMBERS = "write plain numbers such as 1234.50, without currency, percent or thousands signs"
"""Advice for a column of numbers in an unsupported notation."""

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
FLOAT32_MAX = 3.4028235e38
"""Larger numbers count as infinite, and so as missing."""

_NUMBER = re.compile(NUMBER, re.ASCII)


def is_missing(text: str) -> bool:
    """Tell whether a cell is empty or marks its value as missing."""
    return text.strip().lower() in MISSING


def number(text: str) -> float:
    """Return the number in a cell; NaN if missing or not finite."""
    word = text.strip()
    value = float(word) if _NUMBER.match(word) else math.nan
    return value if abs(value) <= FLOAT32_MAX else math.nan

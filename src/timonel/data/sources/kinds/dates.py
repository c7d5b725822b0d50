"""Columns with points in time, and the grammar of their texts.

A conversion (`re`), the inference of columns (Arrow) and the served model (TensorFlow) read texts
with the same expressions, in the common syntax of `re` and RE2.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from timonel.data.schema import DateColumn, DateType
from timonel.data.sources.kinds.base import MISSING, Kind, ReadFile, Value, expected, is_empty
from timonel.data.statistics import NumberStatistics, Statistics, ValueFacts

MISSING_DATE = -(2**63)
"""The value of a missing date, as in NumPy."""

A_DATE = "a date such as 2024-01-31, 2024-01-31T12:30:00+02:00 or 31 Jan 2024"
_ORDERED = {"dmy": "31/01/2024", "mdy": "01/31/2024"}

_TIME = (
    r"(?:(?:[Tt]|,? +)(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?(?: ?([AaPp])[Mm])?"
    r"(?: ?(?:[Zz]|UTC|GMT|([+-]\d{2}):?(\d{2})?))?)?"
)
YEAR_FIRST = rf"(\d{{4}})[-/.](\d{{1,2}})(?:[-/.](\d{{1,2}}))?{_TIME}"
"""Texts with the groups year, month, day, hour, minute, second, a or p, and zone; to match fully.

`rewrites` turns the other forms into this one.
"""

_MONTHS = (
    *("jan(?:uary)?", "feb(?:ruary)?", "mar(?:ch)?", "apr(?:il)?", "may", "june?", "july?"),
    *("aug(?:ust)?", "sept?(?:ember)?", "oct(?:ober)?", "nov(?:ember)?", "dec(?:ember)?"),
)
_WEEKDAY = "(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?,? +"
_ANY_MONTH = f"(?:{'|'.join(_MONTHS)})"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
UNAMBIGUOUS = (
    rf"(?i)^(?:{_WEEKDAY})?(?:\d{{4}}[-/.](?:0?[1-9]|1[0-2])(?:[-/.]{_DAY})?"
    rf"|{_DAY}[- ]{_ANY_MONTH}[-,. ]+\d{{4}}|{_ANY_MONTH}\.?(?: +{_DAY},? +|[- ])\d{{4}})"
    rf"{_TIME}$"
)
"""Texts that only the kind ``date`` reads, or with `rewrites` any kind."""
YEAR_LAST = rf"(?i)^(?:{_WEEKDAY})?{_DAY}[-/.]{_DAY}[-/.](?:\d{{4}}|\d{{2}}){_TIME}$"
"""Texts whose order of day and month is that of the column."""
SHORT_YEAR = r"[-/.]\d{1,2}[-/.]\d{2}(?:\D|$)"
DAY_FIRST = rf"(?i)^(?:{_WEEKDAY})?(?:1[3-9]|[23]\d)[-/.]"
MONTH_FIRST = rf"(?i)^(?:{_WEEKDAY})?{_DAY}[-/.](?:1[3-9]|[23]\d)[-/.]"
"""Dates as `YEAR_LAST` whose order is clear, as one of the numbers is no month."""
COMPACT = r"^(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])$"
"""Numbers that may be dates."""
NO_DATE = rf"(?i)^(?:{'|'.join(map(re.escape, (*MISSING, 'nat')))})$"
"""Texts that stand for a missing date."""

_PARTS = re.compile(YEAR_FIRST, re.ASCII)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SECOND = dt.timedelta(seconds=1)


class Date(Kind):
    """Points in time; those without a time zone are UTC.

    The order is that of day and month in texts with the year last; ``date`` if there are none.
    """

    type = "date"

    def __init__(self, order: DateType = "date") -> None:
        self._order = order
        self._rewrites = [(re.compile(old, re.ASCII), new) for old, new in rewrites(order)]

    def parse(self, value: Any, read: ReadFile) -> Value:  # noqa: ARG002 - names no file
        """Accept dates and their texts; fractions of seconds are cut off."""
        if is_empty(value) or (isinstance(value, str) and re.match(NO_DATE, value.strip())):
            return Value(MISSING_DATE, ValueFacts(numbers=(math.nan,)))
        if isinstance(value, str) or type(value) is int:  # 20240131
            seconds = self._seconds(str(value).strip())
        elif isinstance(value, dt.date):
            if not isinstance(value, dt.datetime):
                value = dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001 - UTC
            moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
            seconds = (moment - _EPOCH) // _SECOND
        else:
            raise expected(expected_date(self._order), value)
        return Value(seconds, ValueFacts(numbers=(float(seconds),)))

    def describe(self, name: str, everything: Statistics, train: Statistics) -> DateColumn:
        """Describe the range."""
        found = everything.numbers.get(name, NumberStatistics())
        missing = train.numbers.get(name, NumberStatistics()).missing
        return DateColumn(
            name=name,
            order=self._order,
            missing=missing,
            minimum=int(found.minimum or 0),
            maximum=int(found.maximum or 0),
        )

    def _seconds(self, given: str) -> int:
        text = given
        found = _PARTS.fullmatch(text)
        if found is None:
            for old, new in self._rewrites:
                text = old.sub(new, text, count=1)
            found = _PARTS.fullmatch(text)
        if found is None:
            raise expected(expected_date(self._order), given)
        *numbers, half, zone_h, zone_min = found.groups()
        year, month, day, hour, minute, second = (int(each or 0) for each in numbers)
        try:
            if half:
                hour = hour % 12 + 12 * (half in "pP") if 1 <= hour <= 12 else 24
            there = dt.datetime(
                *(year, month, 1 if numbers[2] is None else day, hour, minute, second),
                tzinfo=dt.UTC,
            )
        except ValueError:
            raise expected(expected_date(self._order), given) from None
        zone = int(zone_h or 0) * 60
        zone += int(zone_min or 0) * (-1 if (zone_h or "").startswith("-") else 1)
        return (there - _EPOCH) // _SECOND - zone * 60


def expected_date(order: DateType) -> str:
    """Return what a column of dates accepts, for errors."""
    return f"{A_DATE}, or {_ORDERED[order]}" if order in _ORDERED else A_DATE


def rewrites(order: DateType) -> Iterator[tuple[str, str]]:
    """Yield expressions to replace once, in order, so that texts are as `YEAR_FIRST`."""
    yield rf"(?i)^{_WEEKDAY}", ""
    yield r"^(\d{4})(\d{2})(\d{2})T(\d{2})(\d{2})(\d{2})", r"\1-\2-\3T\4:\5:\6"
    yield r"^(\d{4})(\d{2})(\d{2})($|T)", r"\1-\2-\3\4"
    for number, month in enumerate(_MONTHS, start=1):
        yield rf"(?i)^(\d{{1,2}})[- ]{month}[-,. ]+(\d{{4}})", rf"\2-{number}-\1"
        yield rf"(?i)^{month}\.? +(\d{{1,2}}),? +(\d{{4}})", rf"\2-{number}-\1"
        yield rf"(?i)^{month}\.?[- ](\d{{4}})", rf"\1-{number}"
    if order in _ORDERED:
        parts = r"\3-\2-\1" if order == "dmy" else r"\3-\1-\2"
        yield r"^(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})", parts


def date_text(seconds: int) -> str:
    """Return a date of a dataset as clients of a model send it; empty if it is missing."""
    return "" if seconds == MISSING_DATE else f"{np.datetime64(seconds, 's')}Z"

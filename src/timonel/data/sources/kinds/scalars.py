"""Columns with one value per row: text, JSON, bytes, dates."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
import re
from typing import Any, ClassVar

from timonel.data.schema import BytesColumn, ColumnType, DateColumn, TextColumn
from timonel.data.sources.kinds.base import Kind, ReadFile, Value, expected, is_empty, lengths_of
from timonel.data.statistics import NumberStatistics, Statistics, ValueFacts

MISSING_DATE = -(2**63)
"""The value of a missing date, as in NumPy."""

A_DATE = "a date such as 2024-01-31 or 2024-01-31T12:30:00+02:00"
_SLASHES = re.compile(r"^(\d{4})[/.](\d{1,2})[/.](\d{1,2})")
_UTC = dt.UTC
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=_UTC)


class Text(Kind):
    """Text as it is, with surrounding spaces."""

    type: ClassVar[ColumnType] = "text"

    def parse(self, value: Any, read: ReadFile) -> Value:  # noqa: ARG002 - names no file
        """Accept text, and numbers as text."""
        if is_empty(value):
            return Value("", ValueFacts(length=math.nan))
        text = self._text(value)
        return Value(text, ValueFacts(length=len(text)))

    def describe(self, name: str, everything: Statistics, train: Statistics) -> TextColumn:
        """Describe the lengths."""
        lengths = _longest(name, everything, train)
        return TextColumn.model_validate({"name": name, "type": self.type, **lengths})

    def _text(self, value: Any) -> str:
        if isinstance(value, bool | int | float):
            return str(value)
        if not isinstance(value, str):
            raise expected("text", value)
        return value


class Json(Text):
    """JSON as text: kept unchanged if it is valid; other values are encoded."""

    type = "json"

    def _text(self, value: Any) -> str:
        if not isinstance(value, str):
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        try:
            json.loads(value, parse_constant=_no_constant)
        except ValueError as error:
            raise ValueError(f"{expected('JSON', value)}: {error}") from None
        return value


class Bytes(Kind):
    """Bytes, in text files as Base64."""

    type = "bytes"

    def parse(self, value: Any, read: ReadFile) -> Value:  # noqa: ARG002 - names no file
        """Accept bytes, and text in Base64."""
        if is_empty(value):
            return Value(b"", ValueFacts(length=math.nan))
        content = value
        if isinstance(value, str):
            try:
                content = base64.b64decode(value.strip(), validate=True)
            except (binascii.Error, ValueError):
                raise expected("bytes in Base64", value) from None
        if not isinstance(content, bytes):
            raise expected("bytes", value)
        return Value(content, ValueFacts(length=len(content) or math.nan))

    def describe(self, name: str, everything: Statistics, train: Statistics) -> BytesColumn:
        """Describe the lengths."""
        return BytesColumn(name=name, **_longest(name, everything, train))


class Date(Kind):
    """Points in time; those without a time zone are UTC."""

    type = "date"

    def parse(self, value: Any, read: ReadFile) -> Value:  # noqa: ARG002 - names no file
        """Accept dates and ISO 8601; fractions of seconds are cut off."""
        if is_empty(value):
            return Value(MISSING_DATE, ValueFacts(numbers=(math.nan,)))
        found = value
        if isinstance(value, str):
            try:
                found = dt.datetime.fromisoformat(_with_dashes(value.strip()))
            except ValueError:
                raise expected(A_DATE, value) from None
        elif isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            found = dt.datetime(value.year, value.month, value.day, tzinfo=_UTC)
        if not isinstance(found, dt.datetime):
            raise expected(A_DATE, value)
        if found.tzinfo is None:
            found = found.replace(tzinfo=_UTC)
        seconds = (found - _EPOCH) // dt.timedelta(seconds=1)
        return Value(seconds, ValueFacts(numbers=(float(seconds),)))

    def describe(self, name: str, everything: Statistics, train: Statistics) -> DateColumn:
        """Describe the range."""
        found = everything.numbers.get(name, NumberStatistics())
        missing = train.numbers.get(name, NumberStatistics()).missing
        return DateColumn(
            name=name,
            missing=missing,
            minimum=int(found.minimum or 0),
            maximum=int(found.maximum or 0),
        )


def _with_dashes(text: str) -> str:
    # Year first is unambiguous; 01/02/2024 is not, and is an error.
    parts = _SLASHES.match(text)
    if parts is None:
        return text
    year, month, day = parts.groups()
    return f"{year}-{month:0>2}-{day:0>2}{text[parts.end() :]}"


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not valid JSON")


def _longest(name: str, everything: Statistics, train: Statistics) -> dict[str, int]:
    longest = int(lengths_of(name, everything).maximum or 0)
    return {"longest": longest, "missing": lengths_of(name, train).missing}

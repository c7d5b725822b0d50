"""Columns with one value per row: text, JSON, bytes."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from timonel.data.schema import BytesColumn, ColumnType, TextColumn
from timonel.data.sources.kinds.base import Kind, ReadFile, Value, expected, is_empty, lengths_of
from timonel.data.statistics import Statistics, ValueFacts

NO_WORDS = (
    "[!-/:-@\\[-`{-~\u00a0\u00a1\u00ab\u00bb\u00bf\u2000-\u206f\u3000-\u303f"
    "\uff00-\uff0f\uff1a-\uff20]"
)
"""Punctuation and spaces beyond ASCII, between words; in the common syntax of `re` and RE2."""
_SPACES = "[\t-\r\x1c- \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
SURROUNDING_SPACES = f"^{_SPACES}|{_SPACES}$"
"""What `str.strip` and Arrow's trimming remove; in the same syntax."""


class Text(Kind):
    """Text as it is, with surrounding spaces. Its words are lower-case, without punctuation."""

    type: ClassVar[ColumnType] = "text"

    def parse(self, value: Any, read: ReadFile) -> Value:  # noqa: ARG002 - names no file
        """Accept text, and whole numbers; `Cells` has the words of columns with other types."""
        if is_empty(value):
            return Value("", ValueFacts(length=math.nan))
        text = self._text(value)
        return Value(text, ValueFacts(length=len(text), words=self._words(text)))

    def describe(self, name: str, everything: Statistics, train: Statistics) -> TextColumn:
        """Describe the lengths."""
        lengths = _longest(name, everything, train)
        return TextColumn.model_validate({"name": name, "type": self.type, **lengths})

    def _words(self, text: str) -> Sequence[str]:
        found = re.sub(NO_WORDS, " ", text).lower().encode(errors="replace").split()
        return [word.decode() for word in {*found}]

    def _text(self, value: Any) -> str:
        if not isinstance(value, int | str):
            raise expected("text", value)
        return str(value)


class Json(Text):
    """JSON as text: kept unchanged if it is valid; other values are encoded."""

    type = "json"

    def _words(self, text: str) -> Sequence[str]:  # noqa: ARG002 - it has keys and numbers
        return ()

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


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not valid JSON")


def _longest(name: str, everything: Statistics, train: Statistics) -> dict[str, int]:
    longest = int(lengths_of(name, everything).maximum or 0)
    return {"longest": longest, "missing": lengths_of(name, train).missing}

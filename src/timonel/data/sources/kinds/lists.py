"""Columns with lists of numbers or boxes."""

from __future__ import annotations

import math
import re
from typing import Any

from timonel.data.schema import BoxesColumn, NumbersColumn
from timonel.data.sources.kinds.base import (
    Kind,
    ReadFile,
    Value,
    expected,
    is_empty,
    is_number,
    lengths_of,
    parse_list,
)
from timonel.data.statistics import Statistics, ValueFacts

_NUMBERS = "numbers such as 1.5 2.5 or [1.5, 2.5]"
_SEPARATORS = re.compile(r"[\s,;|]+")
_BOXES = "boxes such as [[ymin, xmin, ymax, xmax]]"
_FRACTIONS = "fractions of the height and the width, from 0 to 1"
NO_CLASS = -1.0
BOX_VALUES = 5
"""Stored numbers per box: ymin, xmin, ymax, xmax, class."""


class NumberLists(Kind):
    """Lists of numbers."""

    type = "numbers"

    def parse(self, value: Any, read: ReadFile) -> Value:  # noqa: ARG002 - names no file
        """Accept lists, JSON, and numbers separated by spaces, commas, semicolons or bars."""
        if is_empty(value):
            return Value((), ValueFacts(length=math.nan))
        if isinstance(value, str) and not value.lstrip().startswith("["):
            values: list[Any] = [_number(word) for word in _SEPARATORS.split(value.strip())]
        else:
            values = parse_list(value, _NUMBERS)
        for each in values:
            if not is_number(each):
                raise expected(_NUMBERS, value if each is None else each)
        numbers = tuple(map(float, values))
        return Value(numbers, ValueFacts(length=len(numbers), numbers=numbers))

    def describe(self, name: str, everything: Statistics, train: Statistics) -> NumbersColumn:
        """Describe the lengths."""
        found = lengths_of(name, everything)
        return NumbersColumn(
            name=name,
            missing=lengths_of(name, train).missing,
            shortest=0 if found.missing else int(found.minimum or 0),
            longest=int(found.maximum or 0),
        )


class Boxes(Kind):
    """Bounding boxes as fractions of the image's size, in TensorFlow's order."""

    type = "boxes"

    def parse(self, value: Any, read: ReadFile) -> Value:  # noqa: ARG002 - names no file
        """Accept a list of [ymin, xmin, ymax, xmax] or [ymin, xmin, ymax, xmax, class]."""
        if is_empty(value):
            return Value((), ValueFacts(length=0))
        boxes = parse_list(value, _BOXES)
        if boxes and is_number(boxes[0]):
            boxes = [boxes]
        stored: list[float] = []
        for box in boxes:
            stored += _box(box)
        classes = [f"{int(each)}" for each in stored[4::BOX_VALUES] if each != NO_CLASS]
        return Value(tuple(stored), ValueFacts(length=len(boxes), words=classes))

    def describe(self, name: str, everything: Statistics, train: Statistics) -> BoxesColumn:  # noqa: ARG002 - none is missing
        """Describe the numbers of boxes and the classes."""
        words = everything.words.get(name)
        classes = sorted(map(int, words.counts)) if words else []
        most = int(lengths_of(name, everything).maximum or 0)
        return BoxesColumn(name=name, most=most, classes=tuple(classes))


def _box(box: Any) -> list[float]:
    values = parse_list(box, _BOXES) if not isinstance(box, str) else []
    if len(values) not in {4, BOX_VALUES} or not all(map(is_number, values)):
        raise expected(_BOXES, box)
    ymin, xmin, ymax, xmax, class_ = (*map(float, values), NO_CLASS)[:BOX_VALUES]
    if min(ymin, xmin) < 0 or max(ymax, xmax) > 1:
        raise expected(_FRACTIONS, values)
    if ymin >= ymax or xmin >= xmax:
        raise expected("ymin < ymax and xmin < xmax", values)
    if len(values) == BOX_VALUES and (class_ < 0 or class_ != math.floor(class_) or class_ > 1e6):
        raise expected("a class number from 0", values[4])
    return [ymin, xmin, ymax, xmax, class_]


def _number(word: str) -> Any:
    try:
        return float(word)
    except ValueError:
        return word

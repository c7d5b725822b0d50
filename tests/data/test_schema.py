"""The words in which summaries and reports describe a column."""

from __future__ import annotations

from typing import Any

import pytest

from timonel.data.schema import (
    BoxesColumn,
    BytesColumn,
    CategoricalColumn,
    DateColumn,
    ImageColumn,
    MaskColumn,
    NumbersColumn,
    NumericColumn,
    Spread,
    StoredColumn,
    TextColumn,
    check_compression,
    parse_column_type,
    sort_labels,
    split_named,
)
from timonel.errors import SpecError

SMALL, LARGE = Spread(minimum=8, median=8, maximum=8), Spread(minimum=8, median=9, maximum=16)
LONG_WORD = "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch"


def image(**fields: Any) -> ImageColumn:
    given = {"height": SMALL, "width": SMALL, "size": (8, 8), "channels": 3, "fewest": 1, "most": 1}
    return ImageColumn(name="a", formats={"png": 3}, **{**given, **fields})


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (
            NumericColumn(name="a", mean=2.5, std=1, minimum=-1, maximum=1e6, missing=1200),
            "-1 to 1e+06, mean 2.5, 1,200 missing",
        ),
        (CategoricalColumn(name="a", vocabulary=("Anvers",)), "1 category: Anvers"),
        (CategoricalColumn(name="a", vocabulary=("x", "y", "z")), "3 categories: x, y, z"),
        (CategoricalColumn(name="a", vocabulary=tuple("wxyz")), "4 categories: w, x, y, ..."),
        (
            CategoricalColumn(name="a", vocabulary=(LONG_WORD, "y")),
            f"2 categories: {LONG_WORD[:40]}...",
        ),
        (
            CategoricalColumn(name="a", vocabulary=("x" * 37, "y")),
            f"2 categories: {'x' * 37}, y",
        ),
        (TextColumn(name="a", longest=1234), "up to 1,234 characters"),
        (BytesColumn(name="a", longest=1234, missing=1), "up to 1,234 bytes, 1 missing"),
        (
            DateColumn(name="a", minimum=0, maximum=86_399),
            "1970-01-01 00:00:00 to 1970-01-01 23:59:59 UTC",
        ),
        (NumbersColumn(name="a", shortest=3, longest=3), "3 numbers"),
        (NumbersColumn(name="a", shortest=0, longest=3), "0 to 3 numbers"),
        (image(), "8x8, colour"),
        (image(channels=1), "8x8, grey"),
        (image(height=LARGE, size=None), "8x8 to 16x8 pixels, colour"),
        (image(fewest=0, most=1), "0 to 1 of 8x8, colour"),
        (
            MaskColumn(name="a", height=SMALL, width=SMALL, size=(8, 8), formats={}, classes=()),
            "8x8, no classes",
        ),
        (
            BoxesColumn(name="a", most=7, classes=(0, 1, 2, 3, 9)),
            "up to 7 boxes, classes 0, 1, 2, 3, 9",
        ),
        (
            BoxesColumn(name="a", most=7, classes=tuple(range(6))),
            "up to 7 boxes, classes 0, 1, 2, 3, 4, ...",
        ),
    ],
)
def test_values_in_words(column: StoredColumn, words: str) -> None:
    assert column.values == words


def test_labels_sort_as_numbers_only_if_all_are() -> None:
    assert sort_labels({"10", "9", "1"}) == ["1", "9", "10"]
    assert sort_labels({"10", "9", "one"}) == ["10", "9", "one"]


@pytest.mark.parametrize(
    ("name", "split"),
    [("train", "train"), (" Training ", "train"), ("val", "validation"), ("TEST", "test")],
)
def test_names_of_splits(name: str, split: str) -> None:
    assert split_named(name) == split
    assert split_named(f"{name}s") is None


def test_words_for_column_types() -> None:
    assert parse_column_type(" Float ") == "numeric"
    assert parse_column_type("category") == "categorical"
    with pytest.raises(SpecError, match="unknown column type 'word'"):
        parse_column_type("word")


def test_compressions() -> None:
    assert check_compression("gzip") == "gzip"
    with pytest.raises(SpecError, match="got 'zip'"):
        check_compression("zip")

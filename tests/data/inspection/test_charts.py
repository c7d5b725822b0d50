"""Charts: round numbers on the axes, whole texts, no labels that overlap."""

from __future__ import annotations

import re

import numpy as np
import pytest

from timonel.data.inspection.charts import count_rows, histogram, words
from timonel.data.inspection.distributions import Numbers, Words


def numbers(values: np.ndarray, *, is_date: bool = False) -> Numbers:
    found = Numbers(is_date=is_date)
    found.add(values.tolist())
    return found


def axis_of(figure: str) -> tuple[list[str], list[str]]:
    """Return the labels of shares, and of values."""
    labels = re.findall(r'<text x="(-?[\d.]+)" [^>]*>([^<]*)</text>', figure)
    return [text for x, text in labels if x == "-4"], [text for x, text in labels if x != "-4"]


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        (np.linspace(0.4554, 2.058, 500), "", "0.5 1 1.5 2"),
        (np.linspace(1_696, 69_435, 500), "bytes", "20 kB 40 kB 60 kB"),
        (np.arange(1990, 2025.0), "", "1990 2000 2010 2020"),
        (np.arange(0, 3.0), "", "0 1 2"),
        (np.array([5.0, 6.0]), "", "5 6"),
        (np.linspace(900, 140_000, 500), "", "50,000 100,000"),
        (np.linspace(-4e-7, 4e-7, 500), "", "-4e-07 -2e-07 0 2e-07 4e-07"),
        (np.linspace(0, 3e9, 500), "", "0 1,000M 2,000M 3,000M"),
        (np.linspace(0.5, 0.9, 500), "", "0.5 0.6 0.7 0.8 0.9"),
    ],
)
def test_axes_have_round_numbers(values: np.ndarray, unit: str, expected: str) -> None:
    shares, shown = axis_of(histogram("a", {"train": numbers(values)}, unit))
    assert " ".join(shown) == expected
    assert shares[0] == "0%"
    assert 2 <= len(shares) <= 5


def test_dates_are_shown_at_the_ends_and_in_the_middle() -> None:
    seconds = np.arange(0, 86_400.0 * 3_000, 3_600) + 1_262_304_000
    _, shown = axis_of(histogram("day", {"train": numbers(seconds, is_date=True)}))
    assert len(shown) == 3
    assert (shown[0], shown[1][:4]) == ("2010-01-01", "2014")


def test_units_and_outliers_are_named() -> None:
    values = np.array([*np.linspace(0, 1, 300), 1000.0])
    figure = histogram("image width", {"train": numbers(values), "test": numbers(values)}, "pixels")
    assert "<b>image width (pixels)</b>" in figure
    assert "not shown: 2 far from the others" in figure


def test_long_words_are_shortened_and_counted() -> None:
    found = Words()
    found.add(["<b>" * 100, *(f"w{number}" for number in range(20))])
    figure = words("colour", {"train": found})
    assert "the most frequent of 21 in train" in figure
    assert "<b>" * 2 not in figure
    assert max(map(len, re.findall(r"row>([^<]*)<", figure))) < 80 * 4
    assert "…" in count_rows({"x" * 300: {"train": 1}}, {"train": 1})

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.sources.columns import (
    Kinds,
    NumberColumn,
    is_missing,
    parse_number,
    why_unusable,
)


def test_a_float_represents_integers_below_2_53_exactly() -> None:
    for number, is_rounded in ((2**53 - 1, False), (2**53, True), (-(2**53), True)):
        assert NumberColumn.of(Kinds.of(pa.array([number]))).is_rounded is is_rounded


def test_the_reason_why_a_value_is_unusable() -> None:
    assert why_unusable(" 1e39 ") == "'1e39' is too large for a 32-bit float"
    assert why_unusable("inf") == "'inf' is not a finite number"
    assert why_unusable("x" * 41) == f"'{'x' * 40}...' is not a finite number"


def test_rows_without_a_finite_number_are_unusable() -> None:
    kinds = Kinds.of(pa.array(["1", "", "x", "inf", "NA", "1e39", "-2"]))
    assert kinds.unusable() == [2, 3, 5]


TEXTS = [
    *(
        "",
        " ",
        "NA",
        "n/a",
        "?",
        "None",
        "-NaN",
        "1",
        " 1.5\t",
        "+.5",
        "5.",
        "-2e3",
        "1e39",
        "1e999",
    ),
    *("-inf", "Infinity", "1_000", "1,234", "0x1", "$1", "x", "1 2", "1\n", "\u0661", "\u00a01"),
]


def test_a_cell_is_read_as_its_column_is() -> None:
    kinds = Kinds.of(pa.array(TEXTS))
    np.testing.assert_array_equal(
        [parse_number(text) for text in TEXTS], NumberColumn.of(kinds).values
    )
    assert [is_missing(text) for text in TEXTS] == kinds.missing.to_pylist()


@given(st.text(alphabet="0123456789+-.eE ?,naif", max_size=8))
def test_any_text_is_read_as_in_a_column(text: str) -> None:
    found, expected = (
        parse_number(text),
        float(NumberColumn.of(Kinds.of(pa.array([text]))).values[0]),
    )
    assert found == expected or (math.isnan(found) and math.isnan(expected))

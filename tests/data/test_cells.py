from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from timonel.data import cells
from timonel.data.sources.column_types import Kinds
from timonel.data.sources.columns import Numbers

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
    np.testing.assert_array_equal([cells.number(text) for text in TEXTS], Numbers.of(kinds).values)
    assert [cells.is_missing(text) for text in TEXTS] == kinds.missing.to_pylist()


@given(st.text(alphabet="0123456789+-.eE ?,naif", max_size=8))
def test_any_text_is_read_as_in_a_column(text: str) -> None:
    found, expected = cells.number(text), float(Numbers.of(Kinds.of(pa.array([text]))).values[0])
    assert found == expected or (math.isnan(found) and math.isnan(expected))

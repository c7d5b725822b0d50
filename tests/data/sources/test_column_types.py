from __future__ import annotations

import pyarrow as pa
import pytest

from timonel.data.sources.column_types import Kinds, infer


@pytest.mark.parametrize(
    ("values", "role"),
    [
        (["1", "2.5", "", "-3e4", "NA"], "numeric"),
        ([*map(str, range(99)), "x"], "numeric"),
        ([*map(str, range(80)), *["x"] * 20], "drop"),
        ([*map(str, range(8)), *["x"] * 2] * 20, "categorical"),
        ([*map(str, range(95)), *["02139"] * 5], "drop"),
        (["02139", "10115", "20095"] * 20, "categorical"),
        (["red", "blue"] * 20, "categorical"),
        (["red", "blue"], "categorical"),
        (["Jan 5, 2024", "5 May 2023"] * 9, "drop"),
        (["$12.50", "$13"] * 9, "categorical"),
        (["", "NA", "null"], "drop"),
        (["inf", "-inf"], "drop"),
    ],
)
def test_roles(values: list[str], role: str) -> None:
    assert infer(Kinds.of(pa.array(values))).role == role


def test_only_a_column_of_that_name_assigns_splits() -> None:
    words = Kinds.of(pa.array(["TRAIN", "val", "test"] * 10))
    assert infer(words, "Split").role == "split"
    assert infer(words, "phase").role == "categorical"
    assert infer(Kinds.of(pa.array(["left", "right"])), "split").role == "categorical"


def test_mixed_columns_are_named_with_their_first_word() -> None:
    found = infer(Kinds.of(pa.array(["1", "2", "x", "3", "4"])))
    assert (found.role, found.first_bad, found.is_doubtful) == ("categorical", 2, True)
    assert found.note == "1 of 5 values are not numbers, such as 'x'"

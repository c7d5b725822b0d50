from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from timonel.data.schema import PLAIN_NUMBERS
from timonel.data.sources.columns import Kinds
from timonel.data.sources.inference import first_rounded, infer, is_row_id


@pytest.mark.parametrize(
    ("values", "role"),
    [
        (["1", "2.5", "", "-3e4", "NA"], "numeric"),
        ([*map(str, range(99)), "x"], "numeric"),
        ([*map(str, range(80)), *["x"] * 20], "numeric"),
        ([*map(str, range(8)), *["x"] * 2] * 20, "numeric"),
        ([*map(str, range(8)), *["x"] * 8] * 20, "categorical"),
        ([*map(str, range(80)), *(f"PC {i}" for i in range(20))], "drop"),
        # Identifiers need more than a tenth of other values, and more values than repetitions.
        ([*map(str, range(90)), *(f"PC {i}" for i in range(10))], "numeric"),
        ([*map(str, range(89)), *(f"PC {i}" for i in range(11))], "drop"),
        ([*map(str, range(10))] * 3 + [f"PC {i}" for i in range(10)], "numeric"),
        ([*map(str, range(80)), *(f"${i}.00" for i in range(20))], "numeric"),
        ([*map(str, range(80)), *["inf"] * 20], "numeric"),
        (["a/1.jpg", "", "b.PNG"], "image"),
        (["a/1.jpg", "b.txt"], "categorical"),
        ([*map(str, range(95)), *["02139"] * 5], "drop"),
        (["02139", "10115", "20095"] * 20, "categorical"),
        (["red", "blue"] * 20, "categorical"),
        (["red", "blue"], "categorical"),
        (["Jan 5, 2024", "5 May 2023"] * 9, "date"),
        (["2024-01-05", "Fri, 5 Jan 2024 10:00:00 GMT", "NA", "2024/1", "Jan 2024"], "date"),
        (["2024-13-01", "2024-01-32", "12-34-5678"], "categorical"),
        (["05/01/2024", "13/01/2024", "2024-01-31"], "dmy"),
        (["1.31.2024 10:00", "2.1.2024"], "mdy"),
        ([f"the great number {i} of all" for i in range(30)], "text"),
        ([f"the great number {i % 9} of all" for i in range(30)], "categorical"),
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


def test_a_column_of_splits_with_an_unknown_name_is_dropped_with_a_warning() -> None:
    found = infer(Kinds.of(pa.array(["train", "test", "holdout"])), "split")
    assert (found.role, found.is_doubtful) == ("drop", True)
    assert found.note == "names of splits, but also 'holdout', so that it assigns none"


def test_mixed_columns_are_named_with_their_first_word() -> None:
    found = infer(Kinds.of(pa.array(["1", "2", "x", "y"])))
    assert (found.role, found.first_bad, found.is_doubtful) == ("categorical", 2, True)
    assert found.note == "2 of 4 values are not numbers, such as 'x'"


@pytest.mark.parametrize(
    ("values", "role", "note", "cure"),
    [
        (
            [f"room {n}" for n in range(20)],
            "drop",
            "identifiers or free text: 20 different in 20 values",
            "keep it with --columns 'my day=text', or =category",
        ),
        (
            [f"not very fresh{n}" for n in range(20)],
            "text",
            "free text: 20 different in 20 values",
            "change it with --columns 'my day=category' or =drop",
        ),
        (
            [f"not very fresh{n}" for n in range(25)] * 9,
            "categorical",
            "values of several words: 25 different in 225 values",
            "if they are free text, use --columns 'my day=text'",
        ),
        (
            ["2024-01-31", ""],
            "date",
            "dates",
            "change it with --columns 'my day=category' or =drop",
        ),
        (
            ["31.1.2024"],
            "dmy",
            "dates with the day first",
            "change it with --columns 'my day=category' or =drop",
        ),
        (
            ["01/02/2024", "12/12/2023"],
            "drop",
            "dates with an unknown order of day and month, such as '01/02/2024'",
            "name it with --columns 'my day=dmy' or =mdy",
        ),
        (
            ["31/01/2024", "01/31/2024"],
            "drop",
            "dates with both orders of day and month, such as '31/01/2024'",
            "name it with --columns 'my day=dmy' or =mdy",
        ),
        (
            ["31/01/24 10:00"],
            "drop",
            "dates with years of two digits, such as '31/01/24 10:00'",
            "write four",
        ),
        (
            [*["2024-01-31"] * 97, "soon", "later", "x"],
            "drop",
            "dates in 97 of 100 values",
            "reject the other rows with --columns 'my day=date'",
        ),
        (
            ["20240131", "19991231"],
            "numeric",
            "numbers that look like dates, such as '20240131'",
            "if they are, use --columns 'my day=date'",
        ),
    ],
)
def test_columns_that_could_be_either_are_named_with_a_cure(
    values: list[str], role: str, note: str, cure: str
) -> None:
    found = infer(Kinds.of(pa.array(values)), "my day")
    assert (found.role, found.note, found.cure) == (role, note, cure)
    assert found.is_doubtful == (role in {"drop", "categorical", "numeric"})


def test_integers_that_look_like_dates_are_named() -> None:
    found = infer(Kinds.of(pa.array([20240131, 19991231])), "day")
    assert (found.role, found.note[:28]) == ("numeric", "numbers that look like dates")
    assert infer(Kinds.of(pa.array([20240131, 12])), "day").note == ""


def test_the_cure_for_formatted_numbers_only() -> None:
    assert infer(Kinds.of(pa.array(["$12.50", "$13"] * 9))).cure == PLAIN_NUMBERS
    assert infer(Kinds.of(pa.array(["1", "2", "x", "y"]))).cure == ""
    for formatted, cure in ((18, PLAIN_NUMBERS), (17, "")):
        bad = ["$12.50"] * formatted + ["x"] * 2
        assert infer(Kinds.of(pa.array(bad))).cure == cure


def test_numbers_of_the_type_text_are_words() -> None:
    found = infer(Kinds.of(pa.array(["1", "2"] * 20)), "code", is_typed=True)
    assert (found.role, found.is_doubtful) == ("categorical", True)
    assert found.note == "numbers of the type text"
    assert found.cure == "read them as numbers with --columns code=number"


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        (range(1, 21), "n", True),
        (range(1, 20), "n", False),  # too few to tell
        (range(1, 3), "", True),  # a column without a name numbers the rows
        ([*range(1, 20), 21], "n", False),
        ([*range(1, 20), 21], "customer_id", True),
        ([*range(1, 20), 21], "customerId", True),
        # Names that pandas gives to an index; to_csv gives none.
        ([*range(1, 20), 21], "Unnamed: 0", True),
        ([21, *range(1, 20)], "index", True),
        ([*range(1, 20), 21], "level_1", True),
        ([*range(1, 20), 21], "", True),
        ([*range(1, 20), 1], "Unnamed: 0", False),
        ([*range(1, 20), 21], "body mass index", False),
        ([*range(1, 20), 1], "customer_id", False),
        ([*range(1, 20), None], "customer_id", False),
        ([each + 0.5 for each in range(20)], "customer_id", False),
    ],
)
def test_row_ids(values: Sequence[float | None], name: str, expected: bool) -> None:
    assert is_row_id(Kinds.of(pa.array(values)), name) is expected


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (["1", "", "5265854110"], 2),
        (["16777216", "5265853952"], None),
        (["16777217.0"], 0),
        (["5265854110", "0.5"], None),
        (["6.02e23"], None),
        ([1, 16777217], 1),
        ([2**53, 2**53 + 1], 1),
        ([2**53, 2**60, -(2**53)], None),
        (["9007199254740992", "9007199254740993.0"], 1),
        ([16777217.0, None], 0),
        ([6.02e23, 1.0], None),
    ],
)
def test_integers_that_are_rounded_are_found(values: list[Any], row: int | None) -> None:
    assert first_rounded(Kinds.of(pa.array(values))) == row

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.schema import SPLITS, Split
from timonel.data.splits import (
    DEFAULT_FRACTIONS,
    Division,
    Fractions,
    Move,
    check_fractions,
    position,
    rank,
    thresholds,
)
from timonel.errors import DataError, SpecError

FRACTIONS = st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.9, 0.1, 0.0), (1.0, 0.0, 0.0)])


def split_at(place: float, fractions: Fractions) -> Split:
    validation, test = thresholds(fractions)
    return "train" if place < validation else "validation" if place < test else "test"


@given(FRACTIONS, st.integers(0, 5))
def test_thresholds_give_the_fractions_in_expectation(fractions: Fractions, seed: int) -> None:
    splits = [split_at(position(f"file {i}", seed), fractions) for i in range(4000)]
    for split, fraction in zip(SPLITS, fractions, strict=True):
        # Four standard deviations.
        assert abs(splits.count(split) / 4000 - fraction) <= 4 * math.sqrt(fraction / 4000)


@pytest.mark.parametrize("place", [0.0, 1 - 2**-53])
def test_a_fraction_of_zero_gets_nothing(place: float) -> None:
    assert split_at(place, (1.0, 0.0, 0.0)) == "train"
    assert split_at(place, (0.9, 0.1, 0.0)) in {"train", "validation"}
    assert split_at(place, (0.9, 0.0, 0.1)) in {"train", "test"}


def test_seeds_give_other_divisions_and_orders() -> None:
    assert position("a", 0) != position("a", 1)
    assert rank("a", 0) != rank("a", 1)


def test_the_division_is_the_same_in_every_release() -> None:
    splits = [split_at(position(f"a/{i}", 0), DEFAULT_FRACTIONS) for i in range(20)]
    assert [i for i, split in enumerate(splits) if split != "train"] == [
        *(3, 4, 6, 7, 10, 11, 17, 18)
    ]
    assert rank("a/0", 0).hex() == "0fee5f62256d186e"


@pytest.mark.parametrize(
    "fractions", [(), (0.5, 0.4), (1.2, -0.2), (0.0, 1.0), (0.4, 0.3, 0.2, 0.1), (math.nan,)]
)
def test_wrong_fractions(fractions: tuple[float, ...]) -> None:
    with pytest.raises(SpecError, match="add up to 1"):
        check_fractions(fractions)


def test_fractions_may_be_left_out() -> None:
    assert check_fractions([1]) == (1.0, 0.0, 0.0)
    assert check_fractions([0.9, 0.1]) == (0.9, 0.1, 0.0)


def division(fractions: Fractions = DEFAULT_FRACTIONS, **labels: tuple[int, int, int]) -> Division:
    groups = {name: dict(zip(SPLITS, counts, strict=True)) for name, counts in labels.items()}
    return Division(groups, fractions)


def test_a_complete_division_needs_no_move() -> None:
    assert division(cat=(1, 1, 0), dog=(1, 0, 1)).moves() == []
    assert division((0.9, 0.1, 0.0), cat=(1, 1, 0)).moves() == []


def test_a_label_without_training_records_gets_some() -> None:
    assert division(cat=(9, 0, 1), dog=(0, 1, 0)).moves() == [Move("dog", None, "train")]


def test_an_empty_split_gets_records_of_the_label_with_most() -> None:
    assert division(cat=(3, 1, 0), dog=(5, 1, 0)).moves() == [Move("dog", "train", "test")]


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3).filter(any), min_size=1, max_size=9), FRACTIONS)
def test_moves_end_with_a_complete_division(
    counts: list[tuple[int, int, int]], fractions: Fractions
) -> None:
    groups: dict[str | None, dict[Split, int]] = {
        str(i): dict(zip(SPLITS, each, strict=True)) for i, each in enumerate(counts)
    }
    try:
        for _ in range(4):
            moves = Division(groups, fractions).moves()
            for move in moves:
                label = groups[move.label]
                label[move.origin or ("validation" if label["validation"] else "test")] -= 1
                label[move.target] += 1
        assert not moves
    except DataError:
        needed = len(counts) + sum(fraction > 0 for fraction in fractions) - 1
        assert sum(map(sum, counts)) < needed
        return
    assert all(label["train"] for label in groups.values())
    for split, fraction in zip(SPLITS, fractions, strict=True):
        assert not fraction or any(label[split] for label in groups.values())


def test_fewer_records_than_splits() -> None:
    with pytest.raises(DataError, match="too few records for 3 splits: 2"):
        division(cat=(1, 0, 0), dog=(1, 0, 0)).moves()
    with pytest.raises(DataError, match="4 records are too few for a validation split"):
        division(a=(1, 0, 0), b=(1, 0, 0), c=(1, 0, 0), d=(1, 0, 0)).moves()

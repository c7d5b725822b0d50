from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.schema import SPLITS, Split
from timonel.data.splits import (
    DEFAULT_FRACTIONS,
    Fractions,
    check_fractions,
    position,
    rank,
    thresholds,
)
from timonel.errors import SpecError

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

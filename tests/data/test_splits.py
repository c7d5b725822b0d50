from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.schema import SPLITS
from timonel.data.splits import check_fractions, divide
from timonel.errors import DataError, SpecError


@dataclass(frozen=True)
class Item:
    key: str


def items(label: str, count: int) -> list[Item]:
    return [Item(f"{label}/{index}") for index in range(count)]


FRACTIONS = st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.9, 0.1, 0.0), (1.0, 0.0, 0.0)])


@given(st.lists(st.integers(3, 60), min_size=1, max_size=12), FRACTIONS, st.integers(0, 5))
def test_every_record_is_in_one_split_in_proportion(
    counts: list[int], fractions: tuple[float, float, float], seed: int
) -> None:
    strata = {str(i): items(str(i), count) for i, count in enumerate(counts)}
    splits = divide(strata, fractions, seed)
    keys = [record.key for split in SPLITS for record in splits[split]]
    assert sorted(keys) == sorted(r.key for records in strata.values() for r in records)
    assert {key.split("/")[0] for key in (r.key for r in splits["train"])} == set(strata)
    for split, fraction in zip(SPLITS, fractions, strict=True):
        assert (len(splits[split]) > 0) == (fraction > 0)
        assert abs(len(splits[split]) - fraction * sum(counts)) <= 2
    for label, count in enumerate(counts):
        in_train = sum(record.key.startswith(f"{label}/") for record in splits["train"])
        assert abs(in_train - fractions[0] * count) < 3


@given(st.integers(1, 40), st.integers(1, 30))
def test_tiny_labels_are_all_in_training(labels: int, size: int) -> None:
    strata = {label: items(str(label), size) for label in range(labels)}
    if labels * size < 3 or (size == 1):
        return
    splits = divide(strata, (0.8, 0.1, 0.1), 0)
    assert {record.key.split("/")[0] for record in splits["train"]} == set(map(str, strata))


def test_the_order_in_which_records_are_found_does_not_matter() -> None:
    forward = {"a": items("a", 30), "b": items("b", 20)}
    backward = {label: list(reversed(records)) for label, records in forward.items()}
    assert divide(forward, (0.8, 0.1, 0.1), 1) == divide(backward, (0.8, 0.1, 0.1), 1)


def test_seeds_give_other_divisions_and_labels_are_mixed() -> None:
    strata = {"a": items("a", 50), "b": items("b", 50)}
    one, other = (divide(strata, (0.8, 0.1, 0.1), seed) for seed in (0, 1))
    assert {r.key for r in one["test"]} != {r.key for r in other["test"]}
    changes = [p.key[0] != q.key[0] for p, q in zip(one["train"], one["train"][1:], strict=False)]
    assert sum(changes) > 20


def test_the_division_is_the_same_in_every_release() -> None:
    splits = divide({"a": items("a", 10)}, (0.8, 0.1, 0.1), 0)
    assert [record.key for record in splits["validation"] + splits["test"]] == ["a/3", "a/4"]


def test_fewer_records_than_splits() -> None:
    with pytest.raises(DataError, match="expected at least 3 records for 3 splits, got 2"):
        divide({"a": items("a", 1), "b": items("b", 1)}, (0.8, 0.1, 0.1), 0)


def test_one_record_of_each_label() -> None:
    strata = {label: items(label, 1) for label in "abcd"}
    with pytest.raises(DataError, match="expected enough records for a validation split"):
        divide(strata, (0.8, 0.1, 0.1), 0)


@pytest.mark.parametrize(
    "fractions", [(), (0.5, 0.4), (1.2, -0.2), (0.0, 1.0), (0.4, 0.3, 0.2, 0.1), (math.nan,)]
)
def test_wrong_fractions(fractions: tuple[float, ...]) -> None:
    with pytest.raises(SpecError, match="add up to 1"):
        check_fractions(fractions)


def test_fractions_may_be_left_out() -> None:
    assert check_fractions([1]) == (1.0, 0.0, 0.0)
    assert check_fractions([0.9, 0.1]) == (0.9, 0.1, 0.0)

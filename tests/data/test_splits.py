from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.schema import SPLITS, Split
from timonel.data.sources import Entry
from timonel.data.splits import DEFAULT_FRACTIONS, assign, check_fractions, divide, find_duplicates
from timonel.errors import DataError, SpecError


def items(label: str, count: int) -> list[Entry]:
    return [Entry(f"{label}/{index}", label, 1) for index in range(count)]


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
    with pytest.raises(DataError, match="too few records for 3 splits: 2"):
        divide({"a": items("a", 1), "b": items("b", 1)}, (0.8, 0.1, 0.1), 0)


def test_one_record_of_each_label() -> None:
    strata = {label: items(label, 1) for label in "abcd"}
    with pytest.raises(DataError, match="too few for a validation split"):
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


LABELS = ["cat", "dog"]


def entry(index: int, split: Split | None = None, group: str | None = None) -> Entry:
    return Entry(f"{index:03d}", LABELS[index % 2], 1, None, split, group)


def split_of(entries: list[Entry], **options: object) -> dict[str, str]:
    found = assign(entries, LABELS, options.get("fractions"), 0)  # type: ignore[arg-type] # a tuple
    return {each.key: split for split in SPLITS for each in found.splits[split]}


def test_identical_records_stay_together_in_a_division() -> None:
    entries = [entry(i, group=f"sha256:{i // 4}" if i < 80 else None) for i in range(120)]
    for seed in range(5):
        splits = assign(entries, LABELS, DEFAULT_FRACTIONS, seed).splits
        assert sum(map(len, splits.values())) == 120
        for group in {each.group for each in entries if each.group}:
            assert sum(any(e.group == group for e in splits[split]) for split in SPLITS) == 1


def test_the_source_assigns_the_splits() -> None:
    entries = [entry(i, SPLITS[i % 3]) for i in range(30)]
    assert split_of(entries) == {each.key: each.split for each in entries}
    assert split_of(entries, fractions=(1.0, 0.0, 0.0)) == {e.key: "train" for e in entries}
    found = assign(entries, LABELS, None, 0)
    assert (found.given, found.fractions) == (SPLITS, (1 / 3, 1 / 3, 1 / 3))


def test_records_without_a_split_are_divided() -> None:
    found = split_of([entry(i, "test" if i < 10 else None) for i in range(110)])
    assert list(found.values()).count("test") == 20
    assert all(found[f"{i:03d}"] == "test" for i in range(10))


def test_without_a_validation_split_some_of_train_is_taken() -> None:
    entries = [entry(i, "test" if i % 5 == 0 else "train") for i in range(100)]
    found = assign(entries, LABELS, None, 0)
    assert [len(found.splits[split]) for split in SPLITS] == [72, 8, 20]
    assert {each.split for each in found.splits["test"]} == {"test"}
    assert found.given == ("train", "test")


def test_copies_of_held_out_records_are_left_out_of_the_splits_before() -> None:
    entries = [entry(i, SPLITS[i % 3]) for i in range(30)]
    entries += [entry(30 + i, split, "sha256:a") for i, split in enumerate((*SPLITS, "test"))]
    found = assign(entries, LABELS, None, 0)
    assert found.left_out == [
        ("030", "identical to 032 of the test split"),
        ("031", "identical to 032 of the test split"),
    ]
    assert sum(len(found.splits[split]) for split in SPLITS) == 32


def test_splits_that_cannot_be_trained_on() -> None:
    with pytest.raises(DataError, match="assigns no records to the training split: assign"):
        assign([entry(0, "test"), entry(1, "validation")], LABELS, None, 0)
    with pytest.raises(DataError, match="label 'dog' of 001 is in the test split only"):
        assign([entry(0, "train"), entry(1, "test"), entry(2, "train")], LABELS, None, 0)


def test_duplicates_with_two_labels_come_first() -> None:
    entries = [entry(0, group="sha256:a"), entry(2, group="sha256:a"), entry(4)]
    entries += [entry(6, group="sha256:b"), entry(7, group="sha256:b")]
    found = find_duplicates(entries)
    assert [group.keys for group in found] == [("006", "007"), ("000", "002")]
    assert [group.labels for group in found] == [("cat", "dog"), ("cat",)]

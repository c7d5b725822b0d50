from __future__ import annotations

import pytest

from timonel.data.assignment import DEFAULT_FRACTIONS, assign, find_duplicates
from timonel.data.schema import SPLITS, Split
from timonel.data.sources import Entry
from timonel.errors import DataError

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
    with pytest.raises(DataError, match="assigns no records to the training split: name"):
        assign([entry(0, "test"), entry(1, "validation")], LABELS, None, 0)
    with pytest.raises(DataError, match="label 'dog' of 001 is in the test split only"):
        assign([entry(0, "train"), entry(1, "test"), entry(2, "train")], LABELS, None, 0)


def test_duplicates_with_two_labels_come_first() -> None:
    entries = [entry(0, group="sha256:a"), entry(2, group="sha256:a"), entry(4)]
    entries += [entry(6, group="sha256:b"), entry(7, group="sha256:b")]
    found = find_duplicates(entries)
    assert [group.keys for group in found] == [("006", "007"), ("000", "002")]
    assert [group.labels for group in found] == [("cat", "dog"), ("cat",)]

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from timonel.data.assignment import SplitAssignment, assign
from timonel.data.catalogue import IdenticalGroups, RecordCatalogue
from timonel.data.schema import SPLITS, Split
from timonel.data.sources import Entry, Scan, Source
from timonel.data.splits import DEFAULT_FRACTIONS, Fractions
from timonel.errors import DataError

LABELS = ["cat", "dog"]
FRACTIONS = st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.9, 0.1, 0.0), (1.0, 0.0, 0.0)])


class Exact:
    """Source whose groups are digests."""

    def digest(self, entry: Entry) -> str | None:
        return digests.get(entry.key)


digests: dict[str, str | None] = {}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    digests.clear()
    return tmp_path / "records.db"


def entry(index: int, split: Split | None = None, group: str | None = None) -> Entry:
    digests[f"{index:03d}"] = group
    return Entry(f"{index:03d}", LABELS[index % 2], 1, None, split, group)


def divided(
    database: Path, entries: Iterable[Entry], fractions: Fractions | None = None, seed: int = 0
) -> tuple[dict[Split, list[Entry]], SplitAssignment, IdenticalGroups]:
    with closing(RecordCatalogue(database, seed)) as catalogue:
        catalogue.add(Scan(entries, "classification"))
        identical = catalogue.find_identical(cast("Source", Exact()))
        assignment = assign(catalogue, fractions, by_label=True)
        splits: dict[Split, list[Entry]] = {split: [] for split in SPLITS}
        for found in catalogue.records():
            assert found.split is not None
            splits[found.split].append(found)
        assert {split: len(each) for split, each in splits.items()} == catalogue.counts()
    return splits, assignment, identical


def keys(splits: dict[Split, list[Entry]]) -> dict[str, Split]:
    return {each.key: split for split, found in splits.items() for each in found}


def test_added_records_never_move_others(database: Path) -> None:
    first = [entry(i, group=f"content {i % 190}") for i in range(200)]
    before = keys(divided(database, first)[0])
    added = [entry(200 + i, group=f"content {i * 3}") for i in range(300)]
    after = keys(divided(database, [*added, *first])[0])
    assert {key: after[key] for key in before} == before
    assert len(after) == 500


def test_the_order_in_which_records_are_found_does_not_matter(database: Path) -> None:
    entries = [entry(i) for i in range(50)]
    assert divided(database, entries)[0] == divided(database, entries[::-1])[0]


def test_records_of_a_split_are_mixed(database: Path) -> None:
    train = divided(database, sorted((entry(i) for i in range(200)), key=lambda e: e.label))[0]
    labels = [each.label for each in train["train"]]
    assert sum(a != b for a, b in itertools.pairwise(labels)) > 40


def test_identical_records_stay_together(database: Path) -> None:
    entries = [entry(i, group=f"sha256:{i // 4}" if i < 80 else None) for i in range(120)]
    for seed in range(5):
        splits = divided(database, entries, DEFAULT_FRACTIONS, seed)[0]
        found = keys(splits)
        assert len(found) == 120
        for group in range(20):
            assert len({found[f"{i:03d}"] for i in range(4 * group, 4 * group + 4)}) == 1


def test_each_split_and_each_training_label_exists_for_few_records(database: Path) -> None:
    for count in range(4, 12):
        for seed in range(20):
            splits, assignment, _ = divided(database, [entry(i) for i in range(count)], None, seed)
            assert all(splits.values())
            assert {each.label for each in splits["train"]} == set(LABELS)
            assert len(assignment.warnings) <= 3
    with pytest.raises(DataError, match="2 records are too few for a validation split"):
        divided(database, [entry(0), entry(1)])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=9), FRACTIONS, st.integers(0, 9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_division_is_complete(
    database: Path, counts: list[int], fractions: Fractions, seed: int
) -> None:
    named = [(label, i) for label, count in enumerate(counts) for i in range(count)]
    entries = [Entry(f"{label}/{i}", str(label), 1) for label, i in named]
    asked = [split for split, part in zip(SPLITS, fractions, strict=True) if part]
    try:
        splits = divided(database, entries, fractions, seed)[0]
    except DataError:
        assert len(entries) < len(counts) + len(asked) - 1
        return
    assert len({each.label for each in splits["train"]}) == len(counts)
    assert all(splits[split] for split in asked)


def test_given_test_records_stay_where_labels_are_completed(database: Path) -> None:
    for seed in range(20):
        entries = [entry(i, "test" if i < 20 else "train") for i in range(24)]
        splits = divided(database, entries, None, seed)[0]
        assert len(splits["test"]) == 20
        assert {each.label for each in splits["train"]} == set(LABELS)


def test_a_moved_record_is_reported(database: Path) -> None:
    for index in range(1, 200, 2):
        splits, assignment, _ = divided(database, many_with(index))
        assert keys(splits)[f"{index:03d}"] == "train"
        if assignment.warnings:
            break
    assert assignment.warnings == [
        "label 'dog' would have no training records: some were moved to train"
    ]


def many_with(index: int) -> list[Entry]:
    """Return 100 cats and one dog."""
    return [*(entry(i) for i in range(0, 200, 2)), entry(index)]


def test_many_labels_of_one_record(database: Path) -> None:
    entries = [Entry(f"lone {i}", f"label {i}", 1) for i in range(1000)]
    with pytest.raises(DataError, match="1000 records are too few for a validation split"):
        divided(database, entries)
    splits, assignment, _ = divided(database, [*entries, *map(entry, range(300))])
    assert len({each.label for each in splits["train"]}) == 1002
    (warning,) = assignment.warnings
    assert re.match(r"\d+ labels, the first 'label \d+', would have no training", warning)


def test_one_record_whose_copies_have_all_labels(database: Path) -> None:
    entries = [entry(i, group="same") for i in range(6)]
    with pytest.raises(DataError, match="records are too few"):
        divided(database, entries)


def test_the_source_assigns_the_splits(database: Path) -> None:
    entries = [entry(i, SPLITS[i % 3]) for i in range(30)]
    splits, assignment, _ = divided(database, entries)
    assert keys(splits) == {each.key: each.split for each in entries}
    assert (assignment.given, assignment.fractions) == (SPLITS, (1 / 3, 1 / 3, 1 / 3))
    everything = keys(divided(database, entries, (1.0, 0.0, 0.0))[0])
    assert everything == {each.key: "train" for each in entries}


def test_records_without_a_split_are_divided(database: Path) -> None:
    entries = [entry(i, "test" if i < 10 else None) for i in range(310)]
    found = keys(divided(database, entries)[0])
    assert all(found[f"{i:03d}"] == "test" for i in range(10))
    assert 20 < list(found.values()).count("test") < 60
    few = keys(
        divided(database, [entry(i, SPLITS[i % 3] if i < 30 else None) for i in range(35)])[0]
    )
    assert [few[f"{i:03d}"] for i in range(30, 35)] == ["train"] * 5


def test_without_a_validation_split_some_of_train_is_taken(database: Path) -> None:
    entries = [entry(i, "test" if i % 5 == 0 else "train") for i in range(400)]
    splits, assignment, _ = divided(database, entries)
    assert len(splits["test"]) == 80
    assert 10 < len(splits["validation"]) < 60
    assert assignment.given == ("train", "test")


def test_copies_of_held_out_records_are_left_out_of_the_splits_before(database: Path) -> None:
    entries = [entry(i, SPLITS[i % 3]) for i in range(30)]
    copies = [entry(30 + i, split, "sha256:a") for i, split in enumerate((*SPLITS, "test"))]
    splits, assignment, _ = divided(database, [*entries, *copies, entry(40, None, "sha256:a")])
    assert assignment.left_out == [
        ("030", "identical to 032 of the test split"),
        ("031", "identical to 032 of the test split"),
        ("040", "identical to 032 of the test split"),
    ]
    assert sum(map(len, splits.values())) == 32


def test_splits_that_cannot_be_trained_on(database: Path) -> None:
    with pytest.raises(DataError, match="assigns no records to the training split: assign"):
        divided(database, [entry(0, "test"), entry(1, "validation")])
    with pytest.raises(DataError, match="label 'dog' of 001 is in the test split only"):
        divided(database, [entry(0, "train"), entry(1, "test"), entry(2, "train")])


def test_duplicates_with_two_labels_come_first(database: Path) -> None:
    entries = [entry(0, group="sha256:a"), entry(2, group="sha256:a"), entry(4, group="sha256:c")]
    entries += [entry(6, group="sha256:b"), entry(7, group="sha256:b"), *map(entry, range(8, 20))]
    identical = divided(database, entries)[2]
    assert [group.keys for group in identical.first] == [("006", "007"), ("000", "002")]
    assert [group.labels for group in identical.first] == [("cat", "dog"), ("cat",)]
    assert (identical.count, identical.contradictions) == (2, 1)


def test_records_of_a_group_with_other_content_are_not_identical(database: Path) -> None:
    entries = [entry(i, group="fingerprint") for i in range(2)] + [entry(i) for i in range(2, 20)]
    digests["001"] = "other content"
    splits, _, identical = divided(database, entries)
    assert identical.count == 0
    assert keys(splits)["000"] == keys(splits)["001"]


def test_two_records_with_one_key(database: Path) -> None:
    with pytest.raises(DataError, match="two records the same key"):
        divided(database, [entry(0), replace(entry(1), key="000")])


def test_labels_are_numbers_for_a_regression(database: Path) -> None:
    with closing(RecordCatalogue(database, 0)) as catalogue:
        entries = [Entry(f"{i}", i / 7, 10) for i in range(20)]
        catalogue.add(Scan(entries, "regression"))
        catalogue.find_identical(cast("Source", Exact()))
        assign(catalogue, None, by_label=False)
        assert all(catalogue.counts().values())
        assert sorted(found.label for found in catalogue.records()) == [i / 7 for i in range(20)]
        assert sum(catalogue.sizes().values()) == 200

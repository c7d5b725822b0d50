"""Records with several labels, through all functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.conftest import MakeCsv
from timonel.data import Dataset, convert, diff, inspect, report, stats, verify
from timonel.storage import Workspace


@pytest.fixture
def dataset(make_csv: MakeCsv, tmp_path: Path, workspace: Workspace) -> Dataset:
    words = ("red", "red|blue", "blue|green", "green")
    source = make_csv("size,tags", *[f"{i * i % 97}.5,{words[i % 4]}" for i in range(200)])
    return convert(source, tmp_path / "data", label="tags", task="multilabel", workspace=workspace)


def test_all_labels_of_a_record_count(dataset: Dataset) -> None:
    assert verify(dataset.path).problems == ()
    counts = dataset.manifest.label_counts["train"]
    profile = stats(dataset)["train"].summary()["columns"]["label"]
    assert profile["common"] == {label: n for label, n in counts.items() if n}
    found = inspect(dataset.path, label="blue", number=1000).records
    assert len(found) == counts["blue"]
    assert {each.label for each in found} == {"blue|red", "blue|green"}
    assert diff(dataset).drift == ()


def test_numbers_of_labels_are_compared_with_one_label(
    dataset: Dataset, make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    rows = [f"{i * i % 97}.5,{'red' if i % 2 else 'blue'}" for i in range(200)]
    one = convert(make_csv("size,tags", *rows), tmp_path / "one", label="tags", workspace=workspace)
    found = {(each.column, each.measure): each for each in diff(one, dataset).drift}
    assert found["label count", "Jensen-Shannon"].text.startswith("mean 1, then 1.")
    assert ("label count", "missing") not in found


def test_a_report_has_samples_of_each_label(dataset: Dataset, tmp_path: Path) -> None:
    report(dataset, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert all(f">{label}<" in text for label in ("red", "blue", "green"))
    assert "blue|green" in text

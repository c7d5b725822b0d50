from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import MakeCsv, MakeImages
from timonel.data import Dataset, convert, diff
from timonel.errors import DataError, SpecError
from timonel.storage import Workspace


def table(make_csv: MakeCsv, place: Path, workspace: Workspace, *rows: str, **options) -> Dataset:
    options = {"label": "good", **options}
    source = make_csv(*rows, name=f"{place.name}.csv")
    return convert(source, place, workspace=workspace, **options)


def rows(shift: float, share: float, count: int = 2000, missing: float = 0.0) -> list[str]:
    random = np.random.default_rng(int(shift * 10))
    found = []
    for number in range(count):
        size = "" if random.random() < missing else f"{random.normal(shift):.4f}"
        colour = "red" if random.random() < share else "blue"
        found.append(f"{size},{colour},{number % 2}")
    return ["size,colour,good", *found]


def test_drift_of_numbers_words_and_missing_values(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    old = table(make_csv, tmp_path / "old", workspace, *rows(0, 0.5))
    same = table(make_csv, tmp_path / "same", workspace, *rows(0.01, 0.51))
    new = table(make_csv, tmp_path / "new", workspace, *rows(1, 0.7, missing=0.3))
    assert diff(old, same).drift == ()
    assert diff(old, same).schema == ()
    found = diff(old.path, new.path)
    above = {(each.column, each.measure) for each in found.drift}
    assert above == {
        ("size", "Jensen-Shannon"),
        ("size", "missing"),
        ("colour", "L-infinity"),
    }
    assert all(each.samples == ("old train", "new train") for each in found.distances)
    assert found.fails("drift")
    assert found.fails("any")
    assert not found.fails("schema")
    assert diff(old, new, min_distance=1).drift == ()


def test_tiny_datasets_do_not_alarm(make_csv: MakeCsv, tmp_path: Path, workspace: Workspace):
    old = table(make_csv, tmp_path / "old", workspace, *rows(0, 0.5, 30))
    new = table(make_csv, tmp_path / "new", workspace, *rows(0.01, 0.4, 30))
    assert diff(old, new).drift == ()
    assert diff(old).drift == ()


def test_skew_between_the_splits_of_a_dataset(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    lines = [f"{line},TRAIN" for line in rows(0, 0.5)[1:]]
    lines += [f"{line},VALIDATION" for line in rows(0.01, 0.5, 500)[1:]]
    lines += [f"{line},TEST" for line in rows(1, 0.5, 500)[1:]]
    dataset = table(make_csv, tmp_path / "data", workspace, "size,colour,good,split", *lines)
    (skew,) = diff(dataset).drift
    assert (skew.column, skew.samples) == ("size", ("train", "test"))
    assert skew.counts == (2000, 500)
    assert diff(dataset, split="validation").drift == ()
    with pytest.raises(DataError, match="has no train to compare with train"):
        diff(dataset, split="train")


def test_changes_of_a_schema(make_csv: MakeCsv, tmp_path: Path, workspace: Workspace) -> None:
    def lines(kind: str, labels: str, *extra: str) -> list[str]:
        return [
            ",".join([kind.format(i % 7), str(i * i % 37), labels[i % len(labels)], *extra])
            for i in range(60)
        ]

    old = table(
        make_csv,
        tmp_path / "old",
        workspace,
        "a,n,good,b",
        *lines("w{}", "xy", "1.5"),
        label="good",
    )
    new = table(
        make_csv,
        tmp_path / "new",
        workspace,
        "a,n,good,c",
        *lines("{}.5", "vxz", "2.5"),
        label="good",
    )
    changes = {(change.name, change.text) for change in diff(old, new).schema}
    assert changes == {
        ("a", "type category became number"),
        ("b", "removed"),
        ("c", "added"),
        ("labels", "2 added: v, z"),
        ("labels", "1 removed: y"),
        ("labels", "other numbers: x"),
    }
    assert {each.column for each in diff(old, new).distances} == {"n", "label"}


def test_changed_words_of_a_vocabulary(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    old = table(make_csv, tmp_path / "old", workspace)
    lines = [f"{i}.5,{'green' if i % 3 else 'blue'},{'yes' if i % 2 else 'no'}" for i in range(40)]
    new = table(make_csv, tmp_path / "new", workspace, "size,colour,good", *lines)
    changes = {(change.name, change.text) for change in diff(old, new).schema}
    assert changes == {("colour", "1 added: green"), ("colour", "1 removed: red")}
    assert diff(old, new).fails("schema")


def test_sizes_of_images(make_images: MakeImages, tmp_path: Path, workspace: Workspace) -> None:
    raw = make_images(count=100)
    convert(raw, tmp_path / "old", workspace=workspace)
    for path in raw.rglob("*.png"):
        with Image.open(path) as image:
            image.convert("L").resize((9, 9)).save(path)
    convert(raw, tmp_path / "new", workspace=workspace)
    found = diff(tmp_path / "old", tmp_path / "new")
    assert [(change.name, change.text) for change in found.schema] == [
        ("image", "channels 3 became 1")
    ]
    above = {each.column for each in found.drift}
    assert {"image width", "image height", "image mode", "image bytes"} <= above
    assert "label" not in above


def test_wrong_requests(make_csv: MakeCsv, tmp_path: Path, workspace: Workspace) -> None:
    old = table(make_csv, tmp_path / "old", workspace)
    for options in ({"min_distance": 2}, {"split": "tset"}):
        with pytest.raises(SpecError):
            diff(old, old, **options)
    lines = [f"{line},TRAIN" for line in rows(0, 0.5, 40)[1:]]
    lines += [f"{line},TEST" for line in rows(0, 0.5, 40)[1:]]
    new = table(make_csv, tmp_path / "new", workspace, "size,colour,good,split", *lines)
    one = diff(new, split="test")
    assert one.distances


def test_aspect_ratios_of_scaled_photographs_are_equal(
    tmp_path: Path, workspace: Workspace
) -> None:
    random = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "raw" / label).mkdir(parents=True)
        for number in range(60):
            size = [(400, 300), (450, 300), (300, 400), (400, 225)][number % 4]
            pixels = random.integers(0, 255, (size[1] // 25, size[0] // 25, 3), np.uint8)
            path = tmp_path / "raw" / label / f"{number}.jpg"
            Image.fromarray(pixels).resize(size).save(path)
    old = convert(tmp_path / "raw", tmp_path / "old", workspace=workspace)
    new = convert(tmp_path / "raw", tmp_path / "new", image_size=(97, 97), workspace=workspace)
    found = {each.column: each for each in diff(old, new).distances}
    assert found["image width"].is_above
    assert found["image aspect ratio"].distance == 0

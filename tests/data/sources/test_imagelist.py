from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.contracts.sources import SourceContract
from tests.data.conftest import MakeImages
from timonel.data.conversion import convert
from timonel.data.sources import Scan, Source, SourceOptions, UnusableError, choose_source
from timonel.data.sources.imagelist import ImageListSource
from timonel.data.sources.table import TableSource
from timonel.errors import DataError, SpecError
from timonel.storage import Workspace
from timonel.storage.location import Location

HEADER = ("split", "image_uri", "label")


def write_list(root: Path, header: Sequence[str] = HEADER, **changes: str) -> Path:
    path = root.parent / "list.csv"
    images = sorted(root.rglob("*.png"))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, header, extrasaction="ignore")
        writer.writeheader()
        for index, image in enumerate(images):
            split = ("TRAIN", "VALIDATION", "TEST", "UNASSIGNED")[index % 4]
            uri = image.relative_to(root.parent).as_posix()
            row = {"split": split, "image_uri": uri, "label": image.parent.name, "id": str(index)}
            writer.writerow(row | (changes if index == 0 else {}))
    return path


def read(path: Path) -> tuple[ImageListSource, Scan]:
    """Return the scan, with the images that could not be read."""
    source = ImageListSource(Location(path))
    scan = source.scan()
    rejected = list(scan.rejected)
    for entry in scan.entries:
        try:
            source.read(entry)
        except UnusableError as error:
            rejected.append(error.rejected)
    return source, replace(scan, rejected=rejected)


class TestContract(SourceContract):
    @pytest.fixture
    def source(self, make_images: MakeImages) -> Source:
        return ImageListSource(Location(write_list(make_images())))


@pytest.mark.parametrize("header", [HEADER, ("label", "split", "image_uri")])
def test_columns_come_in_any_order(make_images: MakeImages, header: tuple[str, ...]) -> None:
    path = write_list(make_images(count=2), header)
    assert choose_source(Location(path), SourceOptions()) is ImageListSource
    scan = ImageListSource(Location(path)).scan()
    assert [(entry.key, entry.label, entry.split) for entry in scan.entries] == [
        ("raw/cat/000.png", "cat", "train"),
        ("raw/cat/001.png", "cat", "validation"),
        ("raw/dog/000.png", "dog", "test"),
        ("raw/dog/001.png", "dog", None),
    ]
    assert {column.name: column.role for column in scan.columns} == {
        "split": "split",
        "image_uri": "image",
        "label": "label",
    }


def test_further_columns_are_dropped_and_a_discarded_row_is_ignored(
    make_images: MakeImages,
) -> None:
    path = write_list(make_images(count=2), (*HEADER, "id"), split="DISCARD")
    scan = ImageListSource(Location(path)).scan()
    assert len(list(scan.entries)) == 3
    assert scan.ignored == ["raw/cat/000.png (split DISCARD)"]
    assert scan.columns[-1].role == "drop"


def test_the_user_may_want_a_table(make_images: MakeImages) -> None:
    path = write_list(make_images(count=2))
    assert choose_source(Location(path), SourceOptions(), "table") is TableSource


def test_a_table_with_pictures_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text("price,stock,thumbnail,label\n1,2,a.png,x\n2,3,b.png,y\n")
    assert choose_source(Location(path), SourceOptions()) is TableSource


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        (HEADER, ["split", "image_uri", "label"]),
        (("label", "image_uri", "split"), ["label", "image_uri", "split"]),
        (("image_uri", "label"), ["image_uri", "label"]),
    ],
)
def test_without_a_header(
    make_images: MakeImages, header: tuple[str, ...], columns: list[str]
) -> None:
    path = write_list(make_images(count=2), header)
    path.write_text("\n".join(path.read_text().splitlines()[1:]))
    source = choose_source(Location(path), SourceOptions())(Location(path))
    assert isinstance(source, ImageListSource)
    scan = source.scan()
    assert [column.name for column in scan.columns] == columns
    assert scan.notes == [f"no header: the columns are {', '.join(columns)}"]
    assert [entry.label for entry in scan.entries] == ["cat", "cat", "dog", "dog"]


def test_columns_without_a_header_that_are_not_known(make_images: MakeImages) -> None:
    path = write_list(make_images(count=2), (*HEADER, "id"))
    path.write_text("\n".join(path.read_text().splitlines()[1:]))
    with pytest.raises(DataError, match=r"no header: TRAIN,raw/cat/000.png,cat,0: name the col"):
        choose_source(Location(path), SourceOptions())
    options = SourceOptions(column_names=(*HEADER, "id"))
    scan = choose_source(Location(path), options)(Location(path), options).scan()
    assert len(list(scan.entries)) == 4
    assert scan.columns[-1].role == "drop"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_uri": "raw/none.png"}, r"raw/none\.png: cannot read raw/none\.png: No such file"),
        ({"image_uri": ""}, r"list\.csv#1: expected the path of an image file"),
        ({"image_uri": "raw/cat/000.png|raw/cat/001.png"}, ": 2 images"),
        (
            {"image_uri": "raw/a|b.png"},
            r'raw/a: No such file or directory \(bars .*: \["raw/a\|b\.png"\]\) \(line 2\)$',
        ),
        ({"label": ""}, r"raw/cat/000\.png: no label in column 'label' in line 2"),
        ({"split": "holdout"}, r"expected train, validation or test in .*, got 'holdout'"),
        ({"image_uri": "list.csv"}, r"list\.csv: expected a JPEG, PNG, GIF, BMP or WebP image"),
    ],
)
def test_bad_rows(make_images: MakeImages, change: dict[str, str], message: str) -> None:
    path = write_list(make_images(count=2), **change)
    if "split" in change:
        with pytest.raises(DataError, match=message):
            ImageListSource(Location(path)).scan()
        return
    _, scan = read(path)
    assert len(scan.rejected) == 1
    assert re.search(message, f"{scan.rejected[0].key}: {scan.rejected[0].reason}")


def test_one_image_under_two_labels(make_images: MakeImages) -> None:
    path = write_list(make_images(count=2), label="dog", image_uri="raw/cat/001.png")
    entries = list(ImageListSource(Location(path)).scan().entries)
    assert entries[0].group == entries[1].group is not None
    assert (entries[0].key, entries[1].key) == ("raw/cat/001.png", "raw/cat/001.png (list.csv#2)")


def test_a_column_that_is_not_there(make_images: MakeImages) -> None:
    path = write_list(make_images(count=2))
    for options in ({"label": "kind"}, {"columns": {"kind": "drop"}}):
        with pytest.raises(SpecError, match="the columns are split, image_uri, label"):
            ImageListSource(Location(path), SourceOptions.model_validate(options)).scan()


def test_a_pipe_is_refused(make_images: MakeImages, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    _, scan = read(write_list(make_images(count=2), image_uri="pipe.png"))
    assert [(each.key, each.reason) for each in scan.rejected] == [
        ("pipe.png", "pipe.png is not a regular file (line 2)")
    ]


def test_options_of_tables_are_refused(make_images: MakeImages) -> None:
    path = write_list(make_images(count=2), (*HEADER, "id"))
    options = SourceOptions(columns={"id": "numeric"})
    with pytest.raises(SpecError, match=r"column 'id' of .* cannot be number: a list of images"):
        ImageListSource(Location(path), options).scan()


def test_numbers_are_classes_unless_the_task_is_given(make_images: MakeImages) -> None:
    path = tmp_list(make_images(count=15))
    assert ImageListSource(Location(path)).scan().task == "classification"
    scan = ImageListSource(Location(path), SourceOptions(task="regression")).scan()
    assert [entry.label for entry in scan.entries] == list(map(float, range(30)))


def tmp_list(root: Path) -> Path:
    lines = [f"{path},{index}" for index, path in enumerate(sorted(root.rglob("*.png")))]
    (root.parent / "list.csv").write_text("\n".join(["image_uri,label", *lines]))
    return root.parent / "list.csv"


def test_images_of_a_group_stay_together(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    root = make_images(count=40)
    paths = sorted(path.relative_to(tmp_path).as_posix() for path in root.rglob("*.png"))
    lines = [f"p{i % 13},{path},{path.split('/')[1]}" for i, path in enumerate(paths)]
    (tmp_path / "list.csv").write_text("\n".join(["patient,image_uri,label", *lines]) + "\n")
    dataset = convert(
        tmp_path / "list.csv", tmp_path / "set", group_by="patient", workspace=workspace
    )
    splits = [
        {paths.index(key) % 13 for key in dataset.keys(split)}
        for split in ("train", "validation", "test")
    ]
    assert sum(map(len, splits)) == 13
    with pytest.raises(SpecError, match="--group-by does not apply to"):
        convert(root, tmp_path / "other", group_by="patient", workspace=workspace)


def test_images_may_have_several_labels(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    root = make_images(count=10)
    paths = sorted(path.relative_to(tmp_path).as_posix() for path in root.rglob("*.png"))
    lines = [f"{path},{'b | a' if i % 2 else 'c'}" for i, path in enumerate(paths)]
    (tmp_path / "list.csv").write_text("\n".join(["image_uri,label", *lines]) + "\n")
    dataset = convert(tmp_path / "list.csv", tmp_path / "set", workspace=workspace)
    assert (dataset.task, dataset.labels) == ("multilabel", ("a", "b", "c"))
    for example in dataset.examples("train"):
        expected = [0, 1] if paths.index(example["key"]) % 2 else 2
        assert example["label"] == expected


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_lists_in_other_formats(make_images: MakeImages, tmp_path: Path, ending: str) -> None:
    rows = pa.csv.read_csv(write_list(make_images(count=2)))
    path = tmp_path / f"list.{ending}"
    if ending == "parquet":
        pq.write_table(rows, path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows.to_pylist()))
    assert choose_source(Location(path), SourceOptions()) is ImageListSource
    scan = ImageListSource(Location(path)).scan()
    assert [(entry.label, entry.split) for entry in scan.entries] == [
        ("cat", "train"),
        ("cat", "validation"),
        ("dog", "test"),
        ("dog", None),
    ]


@pytest.mark.parametrize(
    "name", ["x" * 300, "javascript://x", "ftp://127.0.0.1/x", "zip://a::/etc/a.zip", "a\0b"]
)
def test_a_name_that_no_image_can_have_rejects_its_row_only(
    make_images: MakeImages, name: str
) -> None:
    path = write_list(make_images())
    text = path.read_text().splitlines()
    path.write_text("\n".join([*text, f"TRAIN,{name},cat"]))
    _, scan = read(path)
    (rejected,) = scan.rejected
    assert rejected.key == name

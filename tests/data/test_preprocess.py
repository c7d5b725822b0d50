"""All kinds of columns from a table to batches of TensorFlow."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from tests.data.conftest import MakeImages
from timonel.data import load, load_registry
from timonel.data.conversion import convert
from timonel.data.dataset import Dataset
from timonel.data.preprocess import parse_dates, table_batch
from timonel.data.preprocessing import load_options, parse_preprocessing, table_preprocessing
from timonel.data.schema import (
    DATE_TYPES,
    BoxesColumn,
    CategoricalColumn,
    DateColumn,
    NumbersColumn,
    TableSchema,
    TextColumn,
)
from timonel.data.sources.columns import trim
from timonel.data.sources.kinds import KINDS
from timonel.data.sources.kinds.dates import MISSING_DATE, Date
from timonel.errors import DataError, SpecError
from timonel.storage import Workspace

tf = pytest.importorskip("tensorflow")

ROWS = 30
COLUMNS = {
    "photos": "image",
    "mask": "mask",
    "note": "text",
    "day": "date",
    "raw": "bytes",
    "vector": "numbers",
    "fixed": "numbers",
    "objects": "boxes",
    "meta": "json",
}


@pytest.fixture(autouse=True)
def new_session() -> Iterator[None]:
    load_registry.reset()
    yield
    load_registry.reset()


def pixels_of(row: int) -> Any:
    return np.random.default_rng(row).integers(0, 256, (6, 5, 3), np.uint8)


def mask_of(row: int) -> Any:
    return np.random.default_rng(row).integers(0, 3, (6, 5), np.uint8)


def boxes_of(row: int) -> list[list[float]]:
    return [[0, 0, (i + 1) / 4, 1, i] for i in range(row % 3)]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A table with all kinds of columns; made once, as every test only reads it."""
    folder = tmp_path_factory.mktemp("mixed")
    lines = ["photo\tphotos\tmask\tnote\tday\traw\tvector\tfixed\tobjects\tmeta\tsize\tkind\ttags"]
    for row in range(ROWS):
        Image.fromarray(pixels_of(row)).save(folder / f"{row}.png")
        mask = Image.fromarray(mask_of(row)).convert("P")
        mask.putdata(mask_of(row).ravel().tolist())
        mask.putpalette([9, 200, 30, 40, 50, 60, 70, 80, 90])
        mask.save(folder / f"m{row}.png")
        values: list[Any] = [
            f"{row}.png",
            "|".join(f"{row}.png" for _ in range(1 + row % 2)),
            f"m{row}.png",
            f"note {row}",
            "" if row == 3 else f"2024-01-{row + 1:02d}",
            base64.b64encode(bytes([row, 0])).decode(),
            " ".join(["0.5"] * (row % 4)),
            f"{row} 1",
            json.dumps(boxes_of(row)),
            f"[{row}]",
            row,
            "red" if row % 2 else "blue",
            ["a|b", "b", "c|a"][row % 3],
        ]
        lines.append("\t".join(map(str, values)))
    (folder / "rows.tsv").write_text("\n".join(lines) + "\n")
    return convert(
        folder / "rows.tsv",
        folder / "set",
        label="tags",
        columns=COLUMNS,
        workspace=folder / "workspace",
    )


def loaded(dataset: Dataset, **options: Any) -> tuple[list[int], dict[str, Any], Any]:
    """Return the row numbers, the columns and the labels of the training split."""
    data = load(dataset.uri, features="columns", batch_size=ROWS, shuffle=False, **options)
    ((x, y),) = list(data)
    rows = [int(key.rpartition("#")[2]) - 1 for key in dataset.keys("train")]
    return rows, {name: value.numpy() for name, value in x.items()}, y.numpy()


@pytest.mark.parametrize("memory", [0, "1GB"])
def test_values_come_back_as_they_were(mixed: Dataset, memory: str | int) -> None:
    rows, x, _ = loaded(mixed, memory=memory)
    assert len(rows) > 10
    assert x["note"].tolist() == [f"note {row}".encode() for row in rows]
    assert x["raw"].tolist() == [bytes([row, 0]) for row in rows]
    assert x["meta"].tolist() == [f"[{row}]".encode() for row in rows]
    first = 1704067200
    assert x["day"].tolist() == [MISSING_DATE if row == 3 else first + 86400 * row for row in rows]


def test_lists_are_padded_and_counted(mixed: Dataset) -> None:
    rows, x, _ = loaded(mixed)
    assert x["vector/count"].tolist() == [row % 4 for row in rows]
    assert x["vector"].tolist() == [[0.5] * (row % 4) + [0] * (3 - row % 4) for row in rows]
    assert x["fixed"].tolist() == [[row, 1] for row in rows]
    assert "fixed/count" not in x


def test_boxes_are_padded_and_counted(mixed: Dataset) -> None:
    rows, x, _ = loaded(mixed)
    assert x["objects"].shape == (len(rows), 2, 4)
    assert x["objects/count"].tolist() == [row % 3 for row in rows]
    assert x["objects/class"].tolist() == [[[-1, -1], [0, -1], [0, 1]][row % 3] for row in rows]
    for row, boxes in zip(rows, x["objects"], strict=True):
        expected = [box[:4] for box in boxes_of(row)] + [[-1] * 4] * (2 - row % 3)
        assert boxes.tolist() == expected


def test_a_column_may_have_no_boxes_and_no_numbers() -> None:
    columns = (BoxesColumn(name="b", most=0), NumbersColumn(name="n", shortest=0, longest=0))
    spec = table_preprocessing(TableSchema(label="y", columns=columns), "columns")
    empty = tf.RaggedTensor.from_row_lengths(tf.zeros([0]), [0, 0])
    found = table_batch(spec, {"b": empty, "n": empty})
    assert found["b"].shape == (2, 0, 4)
    assert found["b/count"].numpy().tolist() == [0, 0]
    assert found["n"].shape == (2, 0)


def test_images_and_masks_have_their_pixels(mixed: Dataset) -> None:
    rows, x, _ = loaded(mixed, scale=1.0)
    expected = np.stack([pixels_of(row) for row in rows])
    assert np.array_equal(x["photo"], expected)
    assert x["photos/count"].tolist() == [1 + row % 2 for row in rows]
    assert np.array_equal(x["photos"][:, 0], expected)
    second = np.array([row % 2 for row in rows]).reshape(-1, 1, 1, 1)
    assert np.array_equal(x["photos"][:, 1], expected * second)
    assert x["mask"].dtype == np.int32
    assert np.array_equal(x["mask"], np.stack([mask_of(row) for row in rows]))


def test_a_resized_mask_has_no_new_classes(mixed: Dataset) -> None:
    _, x, _ = loaded(mixed, image_size=(11, 13))
    assert x["photo"].shape[1:] == (11, 13, 3)
    assert x["mask"].shape[1:] == (11, 13)
    assert set(np.unique(x["mask"])) == {0, 1, 2}


def test_several_labels_are_multi_hot(mixed: Dataset) -> None:
    rows, _, y = loaded(mixed)
    assert mixed.task == "multilabel"
    assert mixed.labels == ("a", "b", "c")
    assert y.dtype == np.float32
    assert y.tolist() == [[[1, 1, 0], [0, 1, 0], [1, 0, 1]][row % 3] for row in rows]
    with pytest.raises(SpecError, match="does not support multilabel"):
        loaded(mixed, label_mode="int")


@pytest.mark.slow
def test_the_record_of_a_load_repeats_it(mixed: Dataset) -> None:
    loaded(mixed, image_size=(3, 4), scale=1.0)
    found = load_registry.loads[-1].preprocessing
    assert parse_preprocessing(found.model_dump_json()) == found
    load(mixed.uri, **load_options(found))
    assert load_registry.loads[-1].preprocessing == found


def test_images_have_no_place_in_a_vector(mixed: Dataset) -> None:
    with pytest.raises(SpecError, match=r"'photo' \(image\) does not fit into a vector"):
        load(mixed.uri)


def test_any_reader_of_tensorflow_can_read_the_records(mixed: Dataset) -> None:
    shards = [str(path) for path in mixed.shards("train")]
    payload = next(iter(tf.data.TFRecordDataset(shards))).numpy()
    found = tf.io.parse_single_example(
        payload,
        {
            "column/photo": tf.io.FixedLenFeature((), tf.string),
            "column/objects": tf.io.VarLenFeature(tf.float32),
            "label": tf.io.VarLenFeature(tf.int64),
        },
    )
    with Image.open(io.BytesIO(found["column/photo"].numpy())) as image:
        assert image.size == (5, 6)


def test_rows_with_a_missing_or_damaged_image_are_rejected(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    paths = sorted(make_images(count=10).rglob("*.png"))
    paths[3].write_bytes(paths[3].read_bytes()[:-20])
    paths[5].unlink()
    lines = [f"{p.relative_to(tmp_path)},{p.parent.name},{i % 3},{i}" for i, p in enumerate(paths)]
    (tmp_path / "rows.csv").write_text("\n".join(["photo,y,kind,n", *lines]) + "\n")
    out = tmp_path / "set"
    with pytest.raises(DataError, match=r"rows.csv#\d: column 'photo'"):
        convert(tmp_path / "rows.csv", out, label="y", workspace=workspace)
    assert not out.exists()
    dataset = convert(tmp_path / "rows.csv", out, label="y", max_rejected=0.1, workspace=workspace)
    lines = (out / "rejected.jsonl").read_text().splitlines()
    found = {each["key"]: each for each in map(json.loads, lines)}
    assert {key: each["value"] for key, each in found.items()} == {
        "rows.csv#4": "raw/cat/003.png",
        "rows.csv#6": "raw/cat/005.png",
    }
    assert "damaged PNG image" in found["rows.csv#4"]["reason"]
    assert dataset.count() == 18
    assert dataset.manifest.source.files == 19


def test_copies_of_an_image_stay_in_one_split(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    paths = sorted(make_images(count=30).rglob("*.png"))
    for i in range(10):
        shutil.copy(paths[i], tmp_path / f"copy{i}.png")
    names = [*paths, *(tmp_path / f"copy{i}.png" for i in range(10))]
    lines = [f"{p.relative_to(tmp_path)},{'ab'[i % 2]},{i % 3},{i}" for i, p in enumerate(names)]
    (tmp_path / "rows.csv").write_text("\n".join(["photo,y,kind,n", *lines]) + "\n")
    dataset = convert(tmp_path / "rows.csv", tmp_path / "set", label="y", workspace=workspace)
    split_of = {
        int(key.rpartition("#")[2]) - 1: split
        for split in ("train", "validation", "test")
        for key in dataset.keys(split)
    }
    assert all(split_of[i] == split_of[60 + i] for i in range(10))
    assert dataset.manifest.source.duplicate_count == 10


def test_the_graph_reads_dates_as_a_conversion() -> None:
    drawn = random.Random(0)
    texts = []
    for style in ("%m-%d", "%m-%dT%H:%M", "%m-%d %H:%M:%S.5") * 200:
        days = drawn.randrange(9_990 * 365)
        when = dt.datetime(1, 1, 2, tzinfo=dt.UTC) + dt.timedelta(days, drawn.randrange(86_400))
        zone = drawn.choice(["", "Z", "+02:00", "-0330", "-00:30"]) if ":" in style else ""
        texts.append(f"{when.year:04}-{when.strftime(style)}{zone}")
    texts += ["2024/1/5", "2024.12.31", "2000-02-29", "1900-03-01", "2024-02", "20240131", "NaT"]
    texts += ["Wed, 31 Jan 2024 10:00:00 +0100", "Sept 3, 2021 12:05 am", "3-MAY-2021 1:00 PM"]
    texts += ["May 2021", "20240131T101112Z", "2024-01-31t09:00z", "Jun. 1, 1999", " n/a "]
    expected = [Date().parse(text, lambda _: b"").feature for text in texts]
    found = parse_dates(tf.constant([*texts, " "])).numpy().tolist()
    assert found == [*expected, MISSING_DATE]
    for order in DATE_TYPES[1:]:
        last = ["1/2/2024", "03.04.2021 11:30 pm", "Mon 5-6-1999", "2024-01-31"]
        expected = [Date(order).parse(text, lambda _: b"").feature for text in last]
        assert parse_dates(tf.constant(last), order).numpy().tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        *("2023-02-29", "2024-13-01", "2024-00-10", "x", "31.12.2024", "2024-01-01T25:00"),
        *("2024-01-01 13:00 PM", "2024-01-01 0:00 am", "31 Foo 2024", "0000-01-01", "2024-01-00"),
    ],
)
def test_the_graph_refuses_what_is_no_date(text: str) -> None:
    with pytest.raises(ValueError, match="expected a date"):
        Date().parse(text, lambda _: b"")
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a date such as 2024-01-31"):
        tf.function(parse_dates)(tf.constant(["2024-01-01", text]))


def test_a_text_in_a_vector_is_the_words_that_it_has() -> None:
    texts = ["Good, GOOD wine!", "", "über größe", "rotten\u2014good", "none of them", " \t "]
    words = ("good", "größe", "rotten", "über")
    schema = TableSchema(
        label="y", columns=(TextColumn(name="t", longest=20, vocabulary=words, missing=0),)
    )
    spec = table_preprocessing(schema)
    assert spec.width == 4
    assert parse_preprocessing(spec.model_dump_json()) == spec
    found = table_batch(spec, {"t": tf.constant(texts)}).numpy().tolist()
    expected = [
        [word in KINDS["text"].parse(text, lambda _: b"").facts.words for word in words]
        for text in texts
    ]
    assert found == expected
    assert sum(map(sum, expected)) == 5
    assert table_batch(spec, {"t": tf.constant([], tf.string)}).shape == (0, 4)
    old = TableSchema(label="y", columns=(TextColumn(name="t", longest=20),))  # no vocabulary
    with pytest.raises(SpecError, match="does not fit into a vector"):
        table_preprocessing(old)


def test_the_graph_removes_the_spaces_that_a_conversion_removes() -> None:
    characters = [chr(code) for code in range(1, 0x3100)]
    words = [f"{each}re d{each}" for each in characters]
    kept = trim(pa.array(words)).to_pylist()
    assert kept == [word.strip() for word in words]
    schema = TableSchema(
        label="y", columns=(CategoricalColumn(name="c", vocabulary=("re d",), missing=0),)
    )
    found = table_batch(table_preprocessing(schema), {"c": tf.constant(words)}).numpy()
    assert found[:, 1].tolist() == [word == "re d" for word in kept]
    days = [f"{each}2024-01-31{each}" for each in characters if not each.strip()]
    assert len(days) == 29
    assert set(parse_dates(tf.constant(days)).numpy()) == {
        Date().parse(day, lambda _: b"").feature for day in days
    }


def test_dates_in_a_vector_are_their_usual_parts() -> None:
    monday, noon = 4 * 86_400, 43_200  # 1970-01-05
    schema = TableSchema(
        label="y", columns=(DateColumn(name="d", minimum=0, maximum=8 * 86_400, missing=0),)
    )
    spec = table_preprocessing(schema)
    assert spec.width == 7
    assert parse_preprocessing(spec.model_dump_json()) == spec
    found = table_batch(
        spec, {"d": tf.constant([monday + noon, 0, MISSING_DATE], tf.int64)}
    ).numpy()
    year = 2 * np.pi * 4.5 / 365.2425
    week = 2 * np.pi * 4.5 / 7
    expected = [0.5625, np.sin(year), np.cos(year), np.sin(week), np.cos(week), 0, -1]
    np.testing.assert_allclose(found[0], expected, atol=1e-5)
    np.testing.assert_allclose(found[1], [0, 0, 1, 0, 1, 0, 1], atol=1e-6)
    assert not found[2].any()

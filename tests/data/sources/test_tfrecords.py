from __future__ import annotations

import base64
import gc
import gzip
import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.contracts.sources import SourceContract
from tests.data.conftest import MakeCsv, MakeImages, few_files_left
from tests.data.sources.test_tables import write_records
from timonel.data import convert
from timonel.data.records import frame
from timonel.data.sources import Entry, Source, SourceOptions, choose_source, recordfiles
from timonel.data.sources.formats import table_format
from timonel.data.sources.recordfiles import RecordFile
from timonel.data.sources.tfrecords import RecordImageSource
from timonel.errors import DataError, SpecError
from timonel.storage import Workspace
from timonel.storage.location import Location


def records(root: Path) -> list[dict[str, object]]:
    return [
        {"image": path.read_bytes(), "label": index % 2, "source": path.name}
        for index, path in enumerate(sorted(root.rglob("*.png")))
    ]


def open_source(location: Path, **options: object) -> Source:
    chosen = SourceOptions.model_validate(options)
    return choose_source(Location(location), chosen)(Location(location), chosen)


class TestContract(SourceContract):
    @pytest.fixture
    def source(self, make_images: MakeImages, tmp_path: Path) -> Source:
        path = write_records(tmp_path / "images.tfrecord", records(make_images()))
        return RecordImageSource(Location(path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist-train.tfrecord-00000-of-00001", True),
        ("train-00000-of-00001.tfrecord.gz", True),
        ("a.tfrecords", True),
        ("a.tfrecord.index", False),
        ("train-00000-of-00003", True),
        ("train-00000-of-00003.gz", True),
        ("coco_train.record-00000-of-00010", True),
        ("00-1024.tfrec", True),
        ("rows.csv-00000-of-00003", False),
        ("out-00000-of-00003.txt", False),
        ("tfrecord.txt", False),
    ],
)
def test_names_of_record_files(name: str, expected: bool) -> None:
    assert (table_format(name) == "tfrecord") == expected


def test_a_folder_of_tensorflow_datasets(make_images: MakeImages, tmp_path: Path) -> None:
    found = records(make_images(count=4))
    folder = tmp_path / "builder"
    write_records(folder / "pets-train.tfrecord-00000-of-00001", found[:6])
    write_records(folder / "pets-test.tfrecord-00000-of-00001", found[6:])
    (folder / "label.labels.txt").write_text("cat\ndog\n")
    (folder / "features.json").write_text("{}")
    source = open_source(folder)
    scan = source.scan()
    entries = list(scan.entries)
    assert [entry.split for entry in entries] == ["test"] * 2 + ["train"] * 6
    assert [entry.label for entry in entries[:2]] == ["cat", "dog"]
    assert source.read(entries[2]).features == {"image": found[0]["image"]}
    assert {column.name: column.role for column in scan.columns}["source"] == "drop"
    assert not scan.warnings
    write_records(folder / "pets-test.tfrecord-00001-of-00009", found[6:])
    names = ", ".join(f"pets-test.tfrecord-{n:05}-of-00009" for n in (0, 2, 3, 4, 5))
    missing = f"not converted, since they are missing: {names}, ..."
    assert missing in open_source(folder).scan().warnings


def test_compressed_records_are_read_at_any_position(
    make_images: MakeImages, tmp_path: Path
) -> None:
    found = records(make_images())
    plain = write_records(tmp_path / "plain.tfrecord", found)
    packed = tmp_path / "packed.tfrecord.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    source = open_source(packed)
    entries = list(source.scan().entries)
    for entry, record in reversed(list(zip(entries, found, strict=True))):
        assert source.read(entry).features["image"] == record["image"]
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"cannot decompress .*packed\.tfrecord\.gz: Compressed fi"):
        open_source(packed)


def test_compressed_records_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordfiles, "MAX_BYTES", 1 << 22)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    empty = b"".join(frame(b""))
    path = tmp_path / "bomb.tfrecord.gz"
    path.write_bytes(gzip.compress(empty * (1 << 17)))
    assert len(list(RecordFile(Location(path)).spans())) == 1 << 17
    path.write_bytes(gzip.compress(empty * (1 << 20)))
    with pytest.raises(DataError, match=r"more than 4,194,304 bytes when decompressed, over 100"):
        RecordFile(Location(path))
    gc.collect()
    assert not list(temporary.iterdir())


def test_datasets_keep_the_names_of_their_classes(
    make_images: MakeImages, make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    convert(make_images(), tmp_path / "images", workspace=workspace)
    entries = open_source(tmp_path / "images").scan().entries
    assert {entry.label for entry in entries} == {"cat", "dog"}
    convert(make_csv(), tmp_path / "rows", label="good", workspace=workspace)
    source = open_source(tmp_path / "rows", label="good")
    assert {entry.label for entry in source.scan().entries} == {"no", "yes"}


def raw(pixels: np.ndarray, **changes: object) -> dict[str, object]:
    height, width, channels = pixels.shape
    return {
        "image": base64.b64encode(pixels.tobytes(), altchars=b"-_"),
        "image_height": height,
        "image_width": width,
        "image_channels": channels,
        "image_name": "gs://bucket/a.jpg",
        "label": 0,
        "split": "TRAIN",
    } | changes


def test_pixels_of_tfrecorder_become_png(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pixels = [random.integers(0, 256, (5, 7, channels), np.uint8) for channels in (3, 1, 3, 4)]
    examples = [
        raw(pixels[0]),
        raw(pixels[1], split="TEST"),
        raw(pixels[2], split="DISCARD"),
        # TFRecorder counted the alpha channel of an image with transparency out.
        raw(pixels[3], image_channels=3, label=1),
        raw(pixels[0], image_width=6, label=1),
    ]
    path = write_records(tmp_path / "train-00000-of-00001.tfrecord", examples)
    source = open_source(path)
    scan = source.scan()
    entries = list(scan.entries)
    assert [(entry.label, entry.split) for entry in entries] == [
        ("0", "train"),
        ("0", "test"),
        ("1", "train"),
        ("1", "train"),
    ]
    assert list(scan.ignored) == ["train-00000-of-00001.tfrecord#3 (split DISCARD)"]
    assert np.array_equal(image_of(source, entries[0]), pixels[0])
    assert np.array_equal(image_of(source, entries[1]), pixels[1][..., 0])
    assert np.array_equal(image_of(source, entries[2]), pixels[3][..., :3])
    with pytest.raises(DataError, match="#5: the image's pixels do not fit its size"):
        source.read(entries[3])


def image_of(source: Source, entry: Entry) -> np.ndarray:
    content = source.read(entry).features["image"]
    assert isinstance(content, bytes)
    return np.asarray(Image.open(io.BytesIO(content)))


def test_damaged_records_are_rejected(make_images: MakeImages, tmp_path: Path) -> None:
    found = records(make_images())
    found[3]["image"] = []
    found[4]["label"] = [1, 2]
    path = write_records(tmp_path / "images.tfrecord", found)
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    scan = open_source(path).scan()
    assert len(list(scan.entries)) == len(found) - 3
    assert [(each.key.rpartition("#")[2], each.reason) for each in scan.rejected] == [
        ("1", "a wrong checksum"),
        ("4", "0 images in the feature 'image'"),
        ("5", "2 labels in the feature 'label'"),
    ]
    assert scan.rejected[2].hint == "use --task multilabel if records have several labels"
    scan = open_source(path, task="multilabel").scan()
    assert "1|2" in {entry.label for entry in scan.entries}


def test_a_label_has_to_be_known(make_images: MakeImages, tmp_path: Path) -> None:
    found = [{"image": each["image"], "kind": each["label"]} for each in records(make_images())]
    path = write_records(tmp_path / "images.tfrecord", found)
    with pytest.raises(SpecError, match="with --label; the features are image, kind"):
        open_source(path).scan()
    assert len(list(open_source(path, label="kind").scan().entries)) == len(found)


def test_splits_of_records(make_images: MakeImages, tmp_path: Path) -> None:
    found = [{**each, "split": "VAL"} for each in records(make_images(count=2))]
    found[0]["split"] = "holdout"
    for folder in ("a", "b"):
        write_records(tmp_path / folder / "images.tfrecord", found)
    scan = open_source(tmp_path / "*" / "images.tfrecord").scan()
    entries = list(scan.entries)
    assert {entry.split for entry in entries} == {"validation"}
    assert entries[0].key == "a/images.tfrecord#2"
    assert [(each.key, each.reason.rpartition(", ")[2]) for each in scan.rejected] == [
        ("a/images.tfrecord#1", "got 'holdout'"),
        ("b/images.tfrecord#1", "got 'holdout'"),
    ]
    scan = open_source(tmp_path / "a" / "images.tfrecord", columns={"split": "drop"}).scan()
    assert {entry.split for entry in scan.entries} == {None}
    assert not scan.rejected


@pytest.mark.parametrize("ending", ["tfrecord", "tfrecord.gz"])
def test_more_files_than_a_process_may_open(
    make_images: MakeImages, tmp_path: Path, ending: str
) -> None:
    found = records(make_images(count=20))
    for number in range(20):
        path = write_records(tmp_path / "many" / f"{number}.tfrecord", found[number::20])
        if ending.endswith("gz"):
            (tmp_path / "many" / f"{number}.{ending}").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    source = RecordImageSource(Location(tmp_path / "many"))
    with few_files_left(10):
        entries = list(source.scan().entries)
        assert len([source.read(entry) for entry in entries]) == 40

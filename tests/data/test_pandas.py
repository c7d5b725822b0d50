from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from PIL import Image

import timonel.data.pandas  # noqa: F401 - registers the accessors
from tests.data.conftest import MakeImages
from timonel.data import convert
from timonel.errors import DataError, InputError, SpecError
from timonel.storage import Workspace


@pytest.fixture
def listed(make_images: MakeImages) -> pd.DataFrame:
    paths = sorted(make_images(count=8).rglob("*.png"))
    splits = ["TRAIN", "TRAIN", "VALIDATION", "TEST"] * 4
    labels = [path.parent.name for path in paths]
    return pd.DataFrame({"split": splits, "image_uri": map(str, paths), "label": labels})


def table(**changes: object) -> pd.DataFrame:
    columns = {"x": np.arange(40) / 7, "c": ["a", None] * 20, "y": [0, 1] * 20} | changes
    return pd.DataFrame(columns, index=range(5, 45))


def test_rows_of_a_data_frame(tmp_path: Path, workspace: Workspace) -> None:
    dataset = table().timonel.to_tfrecords(tmp_path / "set", label="y", workspace=workspace)
    assert dataset.count() == 40
    assert dataset.manifest.source.uri == "memory://DataFrame"
    again = convert(table(), tmp_path / "again", label="y", workspace=workspace)
    assert again.digest == dataset.digest
    assert again.manifest.source.digest == dataset.manifest.source.digest
    other = convert(table(x=np.arange(40) / 5), tmp_path / "c", label="y", workspace=workspace)
    assert other.manifest.source.digest != dataset.manifest.source.digest


def test_images_of_a_data_frame(listed: pd.DataFrame, tmp_path: Path, workspace: Workspace) -> None:
    dataset = listed.timonel.to_tfrecords(tmp_path / "set", workspace=workspace)
    assert dataset.manifest.counts == {"train": 8, "validation": 4, "test": 4}
    assert dataset.manifest.labels == ("cat", "dog")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (table(x=[1, "one"] * 20), r"'x' of the DataFrame has int and str: 'one' in row 2: give"),
        (table(x=[2**70] * 40), r"cannot read column 'x' of the DataFrame: "),
        (pd.DataFrame([[1, 2]], columns=["y", "y"]), "has 2 columns named 'y'"),
    ],
)
def test_a_data_frame_that_is_no_table(
    frame: pd.DataFrame, message: str, tmp_path: Path, workspace: Workspace
) -> None:
    with pytest.raises(DataError, match=message):
        frame.timonel.to_tfrecords(tmp_path / "set", label="y", workspace=workspace)


def test_options_of_other_names_and_types(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": range(4)})
    with pytest.raises(SpecError, match="no argument 'shard': did you mean 'shards'"):
        frame.timonel.to_tfrecords(tmp_path / "set", shard=2)
    with pytest.raises(SpecError, match=r"expected splits= as a list or None, got '0\.8'"):
        frame.timonel.to_tfrecords(tmp_path / "set", splits="0.8")


def test_another_object_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be a path, a URI or a DataFrame, got dict"):
        convert({"x": [1]}, tmp_path / "set")  # type: ignore[arg-type] # what is tested


SPEC = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "image_channels": tf.io.FixedLenFeature([], tf.int64),
    "image_height": tf.io.FixedLenFeature([], tf.int64),
    "image_name": tf.io.FixedLenFeature([], tf.string),
    "image_width": tf.io.FixedLenFeature([], tf.int64),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "split": tf.io.FixedLenFeature([], tf.string),
}


@pytest.mark.parametrize("compression", ["gzip", None])
def test_the_layout_of_tfrecorder(
    listed: pd.DataFrame, tmp_path: Path, compression: str | None
) -> None:
    result = listed.tensorflow.to_tfr(
        output_dir=tmp_path / "out", compression=compression, num_shards=2
    )
    assert result["metrics"] == {"rows": 16, "good_images": 16, "bad_images": 0}
    folder = Path(result["tfrecord_dir"])
    ending = "tfrecord.gz" if compression else "tfrecord"
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{split}-0000{shard}-of-00002.{ending}"
        for split in ("train", "validation", "test")
        for shard in range(2)
    )
    names = [str(path) for path in sorted(folder.glob("train-*"))]
    found = [
        tf.io.parse_single_example(record, SPEC)
        for record in tf.data.TFRecordDataset(names, "GZIP" if compression else "")
    ]
    assert len(found) == 8
    for each in found:
        pixels = tf.io.decode_raw(tf.io.decode_base64(each["image"]), tf.uint8)
        shape = [each["image_height"], each["image_width"], each["image_channels"]]
        expected = np.asarray(Image.open(each["image_name"].numpy().decode()))
        assert np.array_equal(tf.reshape(pixels, shape), expected)
        assert each["split"] == b"TRAIN"
    assert {int(each["label"]) for each in found} == {0, 1}


def test_the_layout_of_tfrecorder_is_read(
    listed: pd.DataFrame, tmp_path: Path, workspace: Workspace
) -> None:
    result = listed.tensorflow.to_tfr(output_dir=tmp_path / "out")
    dataset = convert(result["tfrecord_dir"], tmp_path / "set", workspace=workspace)
    assert dataset.manifest.counts == {"train": 8, "validation": 4, "test": 4}
    assert dataset.manifest.labels == ("0", "1")
    assert dataset.manifest.record_schema.formats == {"png": 16}


def test_rows_without_a_split_are_left_out_with_a_warning(
    listed: pd.DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listed.loc[0, "split"] = "UNASSIGNED"
    listed.loc[1, "split"] = "DISCARD"
    with caplog.at_level(logging.WARNING):
        result = listed.tensorflow.to_tfr(output_dir=tmp_path)
    assert "left out 1 row of the DataFrame without a split" in caplog.text
    assert result["metrics"]["good_images"] == 14


def test_images_that_cannot_be_read_leave_nothing_behind(
    listed: pd.DataFrame, tmp_path: Path
) -> None:
    Path(listed["image_uri"][1]).write_bytes(b"\xff\xd8\xff no image")
    with pytest.raises(DataError, match="1 of 16 records cannot be used, above the limit"):
        listed.tensorflow.to_tfr(output_dir=tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "argument",
    [
        {"runner": "DataflowRunner"},
        {"project": "mine"},
        {"compression": "zip"},
        {"num_shards": -1},
        {"num_shards": "2"},
        {"num_shard": 2},
        {"job_label": "a/b"},
        {"schema_map": {"split": "SplitKey", "x": "FloatInput"}},
    ],
)
def test_arguments_that_are_not_supported(
    listed: pd.DataFrame, tmp_path: Path, argument: dict[str, object]
) -> None:
    with pytest.raises(SpecError):
        listed.tensorflow.to_tfr(output_dir=tmp_path / "out", **argument)
    assert not (tmp_path / "out").exists()

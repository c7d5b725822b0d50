from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.data.conftest import MakeImages
from timonel.data import Dataset, convert, load
from timonel.data.index import read_positions
from timonel.data.records import frame
from timonel.data.schema import SPLITS, Compression
from timonel.errors import CorruptError, SpecError
from timonel.storage import Workspace


@pytest.fixture(params=["none", "gzip"])
def dataset(
    request: pytest.FixtureRequest, make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> Dataset:
    root = make_images(count=40, size=(60, 50))
    return convert(root, tmp_path / "set", shards=3, compression=request.param, workspace=workspace)


def test_positions_are_those_of_the_records(dataset: Dataset) -> None:
    for split in SPLITS:
        found = []
        parts = read_positions(dataset.path, dataset.manifest, split)
        for path, part in zip(dataset.shards(split), parts, strict=True):
            content = path.read_bytes()
            for start, stop, offset, length in part:
                piece = content[start:stop]
                if dataset.manifest.compression == "gzip":
                    piece = gzip.decompress(piece)
                found.append(piece[offset : offset + length])
                assert piece[offset - 12 : offset + length + 4] == b"".join(frame(found[-1]))
        assert found == list(dataset.payloads(split))


def test_batches_read_by_position_are_those_from_memory(dataset: Dataset) -> None:
    kept, read = (load(dataset.uri, memory=memory, shuffle=False) for memory in ("1GB", 0))
    for (x, y), (u, v) in zip(kept, read, strict=True):
        np.testing.assert_array_equal(x, u)
        np.testing.assert_array_equal(y, v)


def test_tensorflow_reads_the_shards(dataset: Dataset) -> None:
    kind = {"none": "", "gzip": "GZIP"}[dataset.manifest.compression]
    files = [str(path) for path in dataset.shards("train")]
    found = list(tf.data.TFRecordDataset(files, compression_type=kind).as_numpy_iterator())
    assert found == list(dataset.payloads("train"))


def test_opening_reads_no_shard(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a shard was read")

    monkeypatch.setattr("timonel.data.records.mapped", read)
    monkeypatch.setattr("os.pread", read)
    assert int(load(dataset.uri, memory=0).cardinality()) > 0


def test_a_damaged_index_is_found(dataset: Dataset) -> None:
    path = dataset.path / "records.index"
    good = path.read_bytes()
    for content in (good[:-8], good[:-1] + bytes([good[-1] ^ 1])):
        path.write_bytes(content)
        with pytest.raises(CorruptError, match=r"records\.index was changed or truncated: conv"):
            load(dataset.uri, memory=0)
        with pytest.raises(CorruptError, match=r"records\.index"):
            dataset.verify()
    path.unlink()
    with pytest.raises(CorruptError, match=r"records\.index cannot be read: No such file"):
        load(dataset.uri, memory=0)


def test_damaged_gzip_data_is_found(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    made = convert(make_images(), tmp_path / "set", compression="gzip", workspace=workspace)
    (path,) = made.shards("train")
    assert path.name == "train-00000-of-00001.tfrecord.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptError, match=r"is not valid gzip data: .*: .* convert the source"):
        list(made.payloads("train"))
    bad: Compression = "zip"  # type: ignore[assignment] # wrong on purpose
    with pytest.raises(SpecError, match="expected compression= as 'none' or 'gzip', got 'zip'"):
        convert(tmp_path / "raw", tmp_path / "other", compression=bad, workspace=workspace)

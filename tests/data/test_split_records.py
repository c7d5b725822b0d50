from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.data.conftest import MakeImages, few_files_left
from timonel.data import load, split_records
from timonel.data.conversion import convert
from timonel.data.dataset import Dataset
from timonel.data.index import INDEX_NAME
from timonel.errors import CorruptError, InputError
from timonel.storage import Workspace


@pytest.fixture(params=["none", "gzip"])
def dataset(
    request: pytest.FixtureRequest, make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> Dataset:
    return convert(
        make_images(count=30),
        tmp_path / "set",
        shards=3,
        compression=request.param,
        workspace=workspace,
    )


def test_records_are_those_of_the_split(dataset: Dataset) -> None:
    for split in ("train", "validation", "test"):
        records, expected = dataset.records(split), list(dataset.examples(split))
        assert list(records) == expected
        assert len(records) == dataset.count(split)
        assert records[1:4] == expected[1:4]
        assert records[-1] == expected[-1]
        for index in (len(expected), -len(expected) - 1):
            with pytest.raises(IndexError, match=f"below {len(expected)}"):
                records[index]


def test_they_may_be_sent_to_processes_and_used_by_threads(dataset: Dataset) -> None:
    records = pickle.loads(pickle.dumps(dataset.records("train")))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(records.__getitem__, range(len(records))))
    assert found == list(dataset.examples("train"))


def test_shards_beyond_the_limit_of_open_files(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_records, "_MAX_OPEN_FILES", 1)
    assert len(dataset.shards("train")) > 1
    assert list(dataset.records("train")) == list(dataset.examples("train"))


def test_a_damaged_record_does_not_hide_others(dataset: Dataset) -> None:
    expected = list(dataset.examples("train"))
    path = dataset.shards("train")[0]
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    records = dataset.records("train")
    with pytest.raises(CorruptError, match=str(path)):
        records[0]
    assert records[-1] == expected[-1]


def test_a_missing_shard(dataset: Dataset) -> None:
    dataset.shards("train")[0].unlink()
    with pytest.raises(CorruptError, match=r"cannot read the shard .*: No such file.*: convert"):
        dataset.records("train")


def test_without_open_files_left_shards_are_opened_when_needed(dataset: Dataset) -> None:
    expected = list(dataset.examples("train"))
    with few_files_left(2):
        records = dataset.records("train")
    with few_files_left(1):
        assert list(records) == expected
    with few_files_left(0), pytest.raises(InputError, match="too many open files: close some"):
        list(records)


@pytest.mark.parametrize("name", ["shard", "index"])
def test_a_pipe_in_the_place_of_a_file_is_an_error(dataset: Dataset, name: str) -> None:
    path = dataset.shards("train")[0] if name == "shard" else dataset.path / INDEX_NAME
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptError, match="not a regular file"):
        dataset.records("train")
    if name == "shard":
        for read in (lambda: list(dataset.examples("train")), lambda: load(dataset, batch_size=4)):
            with pytest.raises(CorruptError, match="not a regular file"):
                read()

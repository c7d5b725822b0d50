from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.data.conftest import MakeImages
from timonel.data.conversion import convert
from timonel.data.dataset import Dataset, check_split
from timonel.data.manifest import MANIFEST_NAME
from timonel.data.schema import SPLITS
from timonel.errors import CorruptError, FormatError, NotFoundError, SpecError
from timonel.storage import Workspace

FIXTURE = Path(__file__).parent.parent / "fixtures" / "formats" / "1"


@pytest.fixture
def dataset(make_images: MakeImages, tmp_path: Path, workspace: Workspace) -> Dataset:
    return convert(make_images(), tmp_path / "set", workspace=workspace)


def edit(dataset: Dataset, **changes: object) -> None:
    path = dataset.path / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_it_is_an_artifact(dataset: Dataset) -> None:
    artifact = dataset.artifact()
    assert (artifact.type, artifact.uri, artifact.digest) == (
        "dataset",
        dataset.uri,
        dataset.digest,
    )
    assert artifact.name == "set"
    assert artifact.metadata["records"] == 20


def test_a_dataset_may_be_moved(dataset: Dataset, tmp_path: Path) -> None:
    shutil.move(dataset.path, tmp_path / "moved")
    moved = Dataset.open(tmp_path / "moved")
    moved.verify()
    assert moved.digest == dataset.digest


def test_unknown_keys_of_a_later_release_are_ignored(dataset: Dataset) -> None:
    edit(dataset, invented_later={"a": 1})
    assert Dataset.open(dataset.uri) == dataset


def test_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"it has no manifest\.json: create one with"):
        Dataset.open(tmp_path)
    with pytest.raises(NotFoundError):
        Dataset.open(tmp_path / "nowhere")


def test_a_newer_format_is_refused(dataset: Dataset) -> None:
    edit(dataset, format=99)
    with pytest.raises(FormatError, match="upgrade timonel"):
        Dataset.open(dataset.uri)


def test_an_incomplete_manifest(dataset: Dataset) -> None:
    edit(dataset, schema={"type": "images"})
    with pytest.raises(CorruptError, match=r"is not a valid dataset manifest: schema"):
        Dataset.open(dataset.uri)


def test_a_changed_shard_is_found(dataset: Dataset) -> None:
    shard = dataset.shards("train")[0]
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptError, match=f"{shard} has digest"):
        dataset.verify()
    with pytest.raises(CorruptError, match=f"{shard}.* at byte 0"):
        list(dataset.examples("train"))


def test_a_shard_that_is_cut_off_or_gone_is_found_without_reading(dataset: Dataset) -> None:
    dataset.check_sizes()
    shard = dataset.shards("train")[0]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    expected = f"{shard} has {len(content) - 1} bytes instead of {len(content)}"
    with pytest.raises(CorruptError, match=expected):
        dataset.check_sizes()
    shard.unlink()
    with pytest.raises(CorruptError, match=f"{shard} cannot be read: No such file"):
        dataset.check_sizes()


def test_a_missing_shard_is_found(dataset: Dataset) -> None:
    dataset.shards("test")[0].unlink()
    with pytest.raises(CorruptError, match="is missing"):
        dataset.verify()


def test_a_split_that_is_none(dataset: Dataset) -> None:
    for use in (dataset.count, dataset.shards, dataset.keys):
        with pytest.raises(SpecError, match="splits train, validation, test, got 'dev'"):
            use("dev")
    assert check_split("train") == "train"


@pytest.mark.parametrize("name", ["images", "table"])
def test_datasets_of_format_1_can_be_read(name: str) -> None:
    dataset = Dataset.open(FIXTURE / f"dataset-{name}")
    dataset.verify()
    assert dataset.count() == sum(len(dataset.keys(split)) for split in SPLITS) > 0

"""Datasets of this machine, copied to the bucket of a workspace."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_launch import SUCCEEDED, FakeEngine
from timonel.data import Dataset
from timonel.errors import CorruptError
from timonel.storage import Workspace, find_workspace
from timonel.storage.object_store import ObjectStore
from timonel.training import train
from timonel.training.spec import read_spec


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return find_workspace(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were uploaded to staged datasets."""
    names: list[str] = []
    upload, write = ObjectStore.upload, ObjectStore.write

    def counted_write(store: ObjectStore, name: str, content: bytes) -> None:
        if "/staged/" in store.uri:
            names.append(name)
        write(store, name, content)

    def counted(store: ObjectStore, files: Mapping[str, Path]) -> None:
        if "/staged/" in store.uri:
            names.extend(files)
        upload(store, files)

    monkeypatch.setattr(ObjectStore, "upload", counted)
    monkeypatch.setattr(ObjectStore, "write", counted_write)
    return names


def submitted(
    bucket: Workspace, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.chdir(tmp_path)
    engine = FakeEngine(SUCCEEDED)
    engine.shares_machine = False
    run = train(script, data=dataset.uri, workspace=bucket, on=engine)
    return read_spec(bucket.runs / run.id / "train.json")


def test_a_local_dataset_is_copied_once(
    bucket: Workspace,
    dataset: Dataset,
    uploads: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = submitted(bucket, dataset, tmp_path, monkeypatch)
    (place,) = spec.data.values()
    assert place.startswith(f"{bucket.uri}/staged/")
    assert Dataset.open(place).digest == dataset.digest
    assert uploads[-1] == "manifest.json"  # the copy is complete then
    uploads.clear()
    again = submitted(bucket, dataset, tmp_path, monkeypatch)
    assert (dict(again.data), uploads) == (dict(spec.data), [])


def test_a_dataset_that_tasks_see_is_not_copied(
    bucket: Workspace,
    dataset: Dataset,
    uploads: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeEngine, "sees", lambda _, path: path == dataset.path)
    spec = submitted(bucket, dataset, tmp_path, monkeypatch)
    assert (list(spec.data.values()), uploads) == ([dataset.uri], [])


def test_an_interrupted_copy_continues(
    bucket: Workspace,
    dataset: Dataset,
    uploads: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = submitted(bucket, dataset, tmp_path, monkeypatch)
    (place,) = spec.data.values()
    whole = set(uploads)
    lost = {"manifest.json", min(whole - {"manifest.json"})}
    ObjectStore(place).delete(lost)
    uploads.clear()
    submitted(bucket, dataset, tmp_path, monkeypatch)
    assert set(uploads) == lost


@pytest.mark.parametrize("when", ["before", "meanwhile", "after an interrupted copy"])
def test_a_file_that_was_changed_is_not_published(
    bucket: Workspace,
    dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    shutil.copytree(dataset.path, tmp_path / "copy")
    dataset = Dataset.open(str(tmp_path / "copy"))
    name = dataset.manifest.shards[0].name
    original = (dataset.path / name).read_bytes()
    new = bytes(reversed(original))
    upload = ObjectStore.upload

    def changed(store: ObjectStore, files: Mapping[str, Path]) -> None:
        if name in files:
            (dataset.path / name).write_bytes(new)
        upload(store, files)

    if when == "meanwhile":
        monkeypatch.setattr(ObjectStore, "upload", changed)
    else:
        (dataset.path / name).write_bytes(new)
    if when == "after an interrupted copy":
        digest = dataset.digest.removeprefix("sha256:")[:32]
        ObjectStore(f"{bucket.uri}/staged/{digest}").write(name, new)
    with pytest.raises(CorruptError, match=rf"{name} was changed.*convert the source again"):
        submitted(bucket, dataset, tmp_path, monkeypatch)
    assert ObjectStore(bucket.uri).glob("staged/*/manifest.json") == []

    # The original file replaces what was copied of the changed one.
    monkeypatch.setattr(ObjectStore, "upload", upload)
    (dataset.path / name).write_bytes(original)
    (place,) = submitted(bucket, dataset, tmp_path, monkeypatch).data.values()
    assert ObjectStore(place).read(name) == original

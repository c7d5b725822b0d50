"""Datasets of this machine, copied to the bucket of a workspace."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_launch import SUCCEEDED, FakeEngine
from timonel.data import Dataset
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
    upload = ObjectStore.upload

    def counted(store: ObjectStore, files: Mapping[str, Path]) -> None:
        if "/staged/" in store.uri:
            names.extend(files)
        upload(store, files)

    monkeypatch.setattr(ObjectStore, "upload", counted)
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

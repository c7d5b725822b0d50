"""Listings of a folder that other machines write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timonel.storage.atomic import aside_name
from timonel.storage.object_store import ObjectStore
from timonel.storage.shared_filesystem import SharedFileSystem


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    found = ObjectStore(f"shared://{tmp_path}/team")
    found.write("a/x", b"1")
    found.write("a/y", b"2")
    return found


def test_files_that_are_being_written_are_not_listed(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "team/a" / aside_name("z")).write_bytes(b"3")
    assert list(store.find()) == ["a/x", "a/y"]
    assert store.children("a") == ([], ["x", "y"])


def test_a_file_that_vanishes_hides_no_others(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = SharedFileSystem.info

    def deleted_meanwhile(fs: SharedFileSystem, entry: os.DirEntry[str]) -> object:
        if entry.name == "x":
            Path(entry).unlink()
        return info(fs, entry)

    monkeypatch.setattr(SharedFileSystem, "info", deleted_meanwhile)
    assert list(store.find()) == ["a/y"]

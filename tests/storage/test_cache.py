from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from timonel.errors import CorruptError, InputError, NotFoundError, SpecError
from timonel.storage import cache as cache_module
from timonel.storage import digest_bytes, digest_file, digest_tree, remote
from timonel.storage.cache import localize


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "folder"
    (root / "sub").mkdir(parents=True)
    (root / "manifest.json").write_text("{}")
    (root / "sub" / "b").write_bytes(b"content")
    return root


@pytest.fixture
def published(folder: Path, bucket: str) -> str:
    remote.publish(folder, f"{bucket}/digits")
    return f"{bucket}/digits"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is fetched during the test."""
    places: list[str] = []

    def fetch(uri: Any, target: Path) -> None:
        places.append(str(uri))
        remote.fetch(uri, target)

    monkeypatch.setattr(cache_module, "fetch", fetch)
    return places


def test_what_is_local_stays_where_it_is(folder: Path, tmp_path: Path) -> None:
    assert localize(folder, "anything", tmp_path / "cache") == folder
    assert localize(f"file://{folder}", "anything", tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


def test_a_folder_is_fetched_once(
    published: str, folder: Path, tmp_path: Path, fetched: list[str]
) -> None:
    digest = digest_tree(folder)
    for _ in range(2):
        found = localize(published, digest, tmp_path / "cache")
        assert found.name == "digits"
        assert digest_tree(found) == digest
    assert fetched == [published]
    assert not list((tmp_path / "cache").glob(".tmp-*"))


def test_a_file_is_fetched(published: str, folder: Path, tmp_path: Path) -> None:
    found = localize(f"{published}/sub/b", digest_file(folder / "sub" / "b"), tmp_path / "cache")
    assert found.name == "b"
    assert found.read_bytes() == b"content"


def test_the_same_content_elsewhere_is_not_fetched_again(
    published: str, folder: Path, bucket: str, tmp_path: Path, fetched: list[str]
) -> None:
    digest = digest_tree(folder)
    first = localize(published, digest, tmp_path / "cache")
    assert localize(f"{bucket}/copy", digest, tmp_path / "cache") == first
    assert fetched == [published]


@pytest.mark.parametrize("damage", ["cut", "touched", "removed", "added", "entry"])
def test_a_spoilt_entry_is_fetched_again(
    published: str, folder: Path, tmp_path: Path, fetched: list[str], damage: str
) -> None:
    digest = digest_tree(folder)
    found = localize(published, digest, tmp_path / "cache")
    if damage == "cut":
        (found / "sub" / "b").write_bytes(b"")
    elif damage == "touched":
        (found / "sub" / "b").write_bytes(b"CONTENT")
    elif damage == "removed":
        (found / "manifest.json").unlink()
    elif damage == "added":
        (found / "more").write_text("1")
    else:
        (found.parent.parent / "entry.json").write_text("{")
    assert digest_tree(localize(published, digest, tmp_path / "cache")) == digest
    assert len(fetched) == 2


def test_a_change_that_leaves_no_trace_is_found_by_a_full_check(
    published: str, folder: Path, tmp_path: Path, fetched: list[str]
) -> None:
    digest = digest_tree(folder)
    path = localize(published, digest, tmp_path / "cache") / "sub" / "b"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(b"CONTENT")
    os.utime(path, ns=times)
    localize(published, digest, tmp_path / "cache")
    assert len(fetched) == 1
    localize(published, digest, tmp_path / "cache", recheck=True)
    assert len(fetched) == 2
    assert path.read_bytes() == b"content"


def test_what_does_not_have_its_digest_is_not_kept(published: str, tmp_path: Path) -> None:
    digest = digest_bytes(b"other")
    with pytest.raises(CorruptError, match="but what was fetched has another: it was changed"):
        localize(published, digest, tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_content_with_digests_of_its_own_brings_its_check(published: str, tmp_path: Path) -> None:
    digest = digest_bytes(b"a dataset's own")
    checked: list[Path] = []

    def verify(path: Path, expected: str) -> None:
        assert expected == digest
        checked.append(path)

    found = localize(published, digest, tmp_path / "cache", verify=verify)
    assert len(checked) == 1
    assert (found / "manifest.json").is_file()


def test_nothing_and_no_digest(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        localize(f"{bucket}/none", digest_bytes(b""), tmp_path / "cache")
    for digest in ("", "sha256:12", "md5:" + "0" * 64, "sha256:" + "../" * 21 + "a"):
        with pytest.raises(SpecError, match="expected a digest"):
            localize(f"{bucket}/none", digest, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_said_so(published: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected to write"):
        localize(published, digest_bytes(b""), tmp_path / "file")


def _localize(uri: str, digest: str, folder: Path, results: Any) -> None:
    places: list[str] = []
    fetch = cache_module.fetch
    cache_module.fetch = lambda uri, target: (places.append(str(uri)), fetch(uri, target))  # type: ignore[assignment] # this process is the test's
    results.put((localize(uri, digest, folder), len(places)))


def test_of_several_processes_one_fetches(folder: Path, tmp_path: Path) -> None:
    remote.publish(folder, "memory://shared/digits")
    digest = digest_tree(folder)
    # Forked, so that they see the bucket in memory.
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [
        context.Process(
            target=_localize, args=("memory://shared/digits", digest, tmp_path / "cache", results)
        )
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=30) for _ in workers]
    for worker in workers:
        worker.join()
    assert sum(count for _, count in found) == 1
    (path,) = {path for path, _ in found}
    assert digest_tree(path) == digest

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from tests.buckets import set_credentials
from timonel.errors import AlreadyExistsError, InputError, NotFoundError
from timonel.storage import digest_tree
from timonel.storage.bucket_errors import UnavailableError
from timonel.storage.filesystems import open_filesystem
from timonel.storage.object_store import ObjectStore
from timonel.storage.remote import fetch, publish


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "folder"
    (root / "sub").mkdir(parents=True)
    (root / "manifest.json").write_text("{}")
    (root / "a").write_bytes(b"a" * 100_000)
    (root / "sub" / "b c%20").write_bytes(b"")
    return root


def files(uri: str) -> dict[str, bytes]:
    fs, root = open_filesystem(uri)
    fs.invalidate_cache()
    return {place[len(root) + 1 :]: fs.cat_file(place) for place in fs.find(root)}


def test_a_folder_goes_there_and_comes_back(folder: Path, bucket: str, tmp_path: Path) -> None:
    (folder / ".tmp-1-a-b").mkdir()
    (folder / ".tmp-1-a-b" / "half").write_text("1")
    publish(folder, f"{bucket}/digits")
    assert sorted(files(f"{bucket}/digits")) == ["a", "manifest.json", "sub/b c%20"]
    fetch(f"{bucket}/digits", tmp_path / "back")
    assert digest_tree(tmp_path / "back") == digest_tree(folder)
    fetch(f"{bucket}/digits/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"a" * 100_000


def test_a_neighbour_with_a_longer_name_is_no_part(
    folder: Path, bucket: str, tmp_path: Path
) -> None:
    publish(folder, f"{bucket}/digits")
    publish(folder, f"{bucket}/digits2")
    fetch(f"{bucket}/digits", tmp_path / "back")
    assert digest_tree(tmp_path / "back") == digest_tree(folder)


def test_what_is_there_is_replaced_only_on_demand(folder: Path, bucket: str) -> None:
    publish(folder, f"{bucket}/digits")
    (folder / "sub" / "b c%20").unlink()
    (folder / "a").write_text("new")
    with pytest.raises(AlreadyExistsError, match=r"digits already exists"):
        publish(folder, f"{bucket}/digits")
    assert files(f"{bucket}/digits")["a"] == b"a" * 100_000
    publish(folder, f"{bucket}/digits", replace=True)
    assert files(f"{bucket}/digits") == {"a": b"new", "manifest.json": b"{}"}


@pytest.mark.parametrize("replace", [False, True])
def test_a_publish_that_breaks_off_leaves_no_manifest_and_can_be_repeated(
    folder: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    if replace:
        publish(folder, f"{bucket}/digits")
        (folder / "sub" / "b c%20").write_text("new")
    upload, sent = ObjectStore._upload, []

    def break_off(store: ObjectStore, item: tuple[str, Path]) -> None:
        sent.append(item[0])
        if item[0].startswith("sub"):
            raise UnavailableError("the line is dead")
        upload(store, item)

    monkeypatch.setattr(ObjectStore, "_upload", break_off)
    with pytest.raises(UnavailableError, match="the line is dead"):
        publish(folder, f"{bucket}/digits", replace=replace)
    assert "manifest.json" not in files(f"{bucket}/digits")
    monkeypatch.setattr(ObjectStore, "_upload", upload)
    publish(folder, f"{bucket}/digits")
    assert "manifest.json" in files(f"{bucket}/digits")


def test_the_manifest_is_withdrawn_first_and_written_last(
    folder: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(folder, f"{bucket}/digits")
    (folder / "a").write_text("new")
    (folder / "sub" / "b c%20").unlink()
    done: list[object] = []
    upload, delete = ObjectStore.upload, ObjectStore.delete

    def note_upload(store: ObjectStore, items: dict[str, Path]) -> None:
        done.append(sorted(items))
        upload(store, items)

    def note_delete(store: ObjectStore, names: list[str]) -> None:
        done.extend(f"-{name}" for name in names)
        delete(store, names)

    monkeypatch.setattr(ObjectStore, "upload", note_upload)
    monkeypatch.setattr(ObjectStore, "delete", note_delete)
    publish(folder, f"{bucket}/digits", replace=True)
    assert done == ["-manifest.json", "-sub/b c%20", ["a"], ["manifest.json"]]


def test_what_arrives_cut_off_is_noticed(
    folder: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectStore, "_upload", lambda store, item: store.write(item[0], b"a"))
    with pytest.raises(InputError, match="a has 1 bytes instead of 100000"):
        publish(folder, f"{bucket}/digits")
    assert "manifest.json" not in files(f"{bucket}/digits")


def test_a_folder_without_its_manifest_is_not_published(folder: Path, bucket: str) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(NotFoundError, match=r"has no manifest\.json"):
        publish(folder, f"{bucket}/digits")
    assert files(bucket) == {}


def test_nothing_cannot_be_fetched(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file or folder at .*none"):
        fetch(f"{bucket}/none", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_names_that_lead_out_of_the_folder_are_skipped(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/evil/data/y", b"1")
    fs.store["/evil/data/../../../x"] = fs.store["/evil/data/y"]
    try:
        fetch("memory://evil/data", tmp_path / "t" / "x")
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["y"]
    finally:
        fs.store.pop("/evil/data/../../../x")


@pytest.mark.slow
def test_a_bucket_that_is_missing_or_away_is_said_so(
    folder: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    set_credentials(monkeypatch, s3_server)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(NotFoundError, match="cannot write s3://no-such-bucket/x"):
        publish(folder, "s3://no-such-bucket/x")
    s3fs.S3FileSystem.clear_instance_cache()

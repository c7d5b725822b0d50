"""One contract of the object store, in memory, on a local folder and on an S3 server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.buckets import open_bucket
from tests.storage.faulty import FaultyServer
from timonel.errors import AlreadyExistsError, CorruptError, InputError, NotFoundError
from timonel.storage.bucket_errors import UnavailableError
from timonel.storage.object_store import ObjectStore


@pytest.fixture(params=["folder", "shared", "memory", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    if request.param in {"folder", "shared"}:
        scheme = "shared://" if request.param == "shared" else ""
        yield ObjectStore(f"{scheme}{tmp_path}/store")
        return
    for uri in open_bucket(request.param, request, monkeypatch):
        yield ObjectStore(uri)


def test_objects_are_written_listed_read_and_deleted(store: ObjectStore) -> None:
    assert store.find() == {}
    assert store.folders("a") == []
    store.write("a/x", b"1")
    store.write("a/b/y", b"22")
    store.write("ab", b"")
    store.write("a/x", b"333")
    assert {name: blob.size for name, blob in store.find().items()} == {
        "a/x": 3,
        "a/b/y": 2,
        "ab": 0,
    }
    assert sorted(store.find("a")) == ["a/b/y", "a/x"]
    assert store.folders("a") == ["b"]
    assert store.read("a/x") == b"333"
    store.delete(["a/x", "a/x"])
    assert sorted(store.find("a")) == ["a/b/y"]
    with pytest.raises(NotFoundError, match=r"cannot read .*a/x: not found"):
        store.read("a/x")


def test_an_object_is_created_once(store: ObjectStore) -> None:
    store.create("n", b"first")
    store.create("n", b"first")  # a repeated request
    with pytest.raises(AlreadyExistsError, match="n already exists"):
        store.create("n", b"second")
    assert store.read("n") == b"first"


def test_of_many_creators_one_succeeds(store: ObjectStore) -> None:
    barrier = threading.Barrier(6)

    def create(number: int) -> bool:
        barrier.wait()
        try:
            store.create("n", f"{number}".encode())
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(create, range(6)))
    assert [number for number, did in enumerate(won) if did] == [int(store.read("n"))]


@pytest.mark.slow
def test_files_are_copied_there_and_back(store: ObjectStore, tmp_path: Path) -> None:
    for name in ("a", "b c%20", "empty"):
        (tmp_path / name).write_bytes(name.encode() * 1000 if name != "empty" else b"")
    store.upload({f"d/{name}": tmp_path / name for name in ("a", "b c%20", "empty")})
    blobs = store.find("d")
    store.download({name: tmp_path / "back" / name for name in blobs}, blobs)
    for name in ("a", "b c%20", "empty"):
        assert (tmp_path / "back" / "d" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_an_object_replaced_after_the_listing_is_not_taken_for_it(
    bucket: str, tmp_path: Path
) -> None:
    store = ObjectStore(bucket)
    store.write("a", b"1" * 10)
    blobs = store.find()
    store.write("a", b"2" * 11)
    with pytest.raises(CorruptError, match="a does not match its checksum"):
        store.download({"a": tmp_path / "a"}, blobs)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["away", "busy"])
def test_a_server_that_comes_back_is_waited_for(
    faulty: tuple[str, FaultyServer], fault: str
) -> None:
    uri, server = faulty
    asked = iter([fault] * 12)
    server.fault = lambda *_: next(asked, None)
    store = ObjectStore(uri)
    store.write("a", b"1")
    assert store.read("a") == b"1"
    assert next(asked, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["away", "busy"])
def test_a_server_that_stays_away_is_named(faulty: tuple[str, FaultyServer], fault: str) -> None:
    uri, server = faulty
    server.fault = lambda *_: fault
    with pytest.raises(UnavailableError, match=rf"cannot read {uri}/a: the server does not answer"):
        ObjectStore(uri, patience_s=0.1).read("a")


def test_a_lost_answer_is_no_other_writer(faulty: tuple[str, FaultyServer]) -> None:
    uri, server = faulty
    asked = iter(["lost"])
    server.fault = lambda method, *_: next(asked, None) if method == "PUT" else None
    store = ObjectStore(uri)
    store.create("a", b"mine")
    assert store.read("a") == b"mine"
    # The repeated request was refused, and the object found to be the same.
    assert len([path for method, path, _ in server.seen if method == "PUT" and "/a" in path]) == 2


def test_half_an_object_is_not_taken_for_it(
    faulty: tuple[str, FaultyServer], tmp_path: Path
) -> None:
    uri, server = faulty
    store = ObjectStore(uri)
    store.write("a", b"1" * 100_000)
    blobs = store.find()
    asked = iter(["cut"])
    server.fault = lambda method, *_: next(asked, None) if method == "GET" else None
    store.download({"a": tmp_path / "a"}, blobs)
    assert (tmp_path / "a").read_bytes() == b"1" * 100_000


@pytest.mark.parametrize("fault", ["flip", "flip-unchecked"])
def test_a_download_that_was_damaged_on_the_way_is_repeated(
    faulty: tuple[str, FaultyServer], tmp_path: Path, fault: str
) -> None:
    uri, server = faulty
    store = ObjectStore(uri)
    store.write("a", b"content")
    blobs = store.find()
    asked = iter([fault])
    server.fault = lambda method, path, _: next(asked, None) if path.endswith("/a") else None
    store.download({"a": tmp_path / "a"}, blobs)
    assert (tmp_path / "a").read_bytes() == b"content"
    assert len([path for method, path, _ in server.seen if method == "GET" and "/a" in path]) == 2


@pytest.mark.slow
def test_a_full_disk_is_named(bucket: str, small_disk: Path) -> None:
    store = ObjectStore(bucket)
    store.write("a", bytes(100_000))
    with pytest.raises(InputError, match=r"cannot write .*/small/a: No space left on device"):
        store.download({"a": small_disk / "a"}, store.find())
    assert list(small_disk.iterdir()) == []


def test_downloads_run_in_parallel_and_end_at_the_first_error(
    faulty: tuple[str, FaultyServer], tmp_path: Path
) -> None:
    uri, server = faulty
    store = ObjectStore(uri, patience_s=0.0)
    for number in range(8):
        store.write(f"{number}", b"1")
    blobs = store.find()
    together = threading.Barrier(4, timeout=60)
    server.before = lambda *_: together.wait() and None
    store.download({name: tmp_path / name for name in blobs}, blobs)
    assert len(list(tmp_path.iterdir())) == 8
    server.before = lambda *_: None
    server.fault = lambda *_: "away"
    server.seen.clear()
    many = {f"{number}": tmp_path / "more" / f"{number}" for number in range(1000)}
    with pytest.raises(UnavailableError, match="the server does not answer"):
        store.download(many, dict.fromkeys(many, blobs["0"]))
    assert len(server.seen) < 100


def test_a_long_wait_for_a_server_is_logged(
    faulty: tuple[str, FaultyServer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("timonel.storage.object_store._SILENT_S", 0.0)
    uri, server = faulty
    asked = iter(["away"] * 12)
    server.fault = lambda *_: next(asked, None)
    ObjectStore(uri).write("a", b"1")
    assert caplog.text.count("the server does not answer") == 1
    assert "trying for 40 s" in caplog.text


def test_expired_credentials_are_named(faulty: tuple[str, FaultyServer]) -> None:
    uri, server = faulty
    server.fault = lambda *_: "expired"
    store = ObjectStore(uri)
    for work in (store.find, lambda: store.read("a"), lambda: store.create("a", b"")):
        with pytest.raises(InputError, match="the credentials have expired: renew them"):
            work()


def test_a_bucket_that_does_not_exist_is_named(faulty: tuple[str, FaultyServer]) -> None:
    with pytest.raises(NotFoundError, match="cannot write s3://no-such-bucket/x/a: not found"):
        ObjectStore("s3://no-such-bucket/x").write("a", b"")

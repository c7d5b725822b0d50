from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.buckets import open_bucket
from timonel.errors import InputError, NotFoundError, SpecError
from timonel.storage.blobs import Blob
from timonel.storage.location import Location, distinct_names, revision_number
from timonel.storage.object_store import ObjectStore

FILES = ("a.csv", "b/c.csv", "b/d[1].csv", "b/.hidden.csv", "_spark/x.csv")


@pytest.fixture(params=["local", "memory", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Location]:
    """A folder with `FILES`, local and in buckets."""
    if request.param == "local":
        yield filled(str(tmp_path / "root"))
        return
    yield from map(filled, open_bucket(request.param, request, monkeypatch))


def filled(root: str) -> Location:
    store = ObjectStore(root)
    for name in FILES:
        store.write(name, name.encode())
    return Location(root)


def below(place: Location, files: list[Location]) -> list[str]:
    return [file.uri.removeprefix(f"{place.uri}/") for file in files]


def test_files_of_a_folder_a_pattern_and_a_file(place: Location) -> None:
    assert below(place, place.files()) == ["a.csv", "b/c.csv", "b/d[1].csv"]
    assert below(place, (place / "*.csv").files()) == ["a.csv"]
    assert below(place, (place / "b/c*").files()) == ["b/c.csv"]
    assert below(place, (place / "a.csv").files()) == ["a.csv"]
    assert below(place, [place.first_file() or place]) == ["a.csv"]
    assert (place / "none").first_file() is None


def test_kinds_of_locations(place: Location) -> None:
    file, pattern, none = place / "a.csv", place / "b/*.csv", place / "none"
    assert (place.is_dir(), place.is_file(), place.is_pattern) == (True, False, False)
    assert (file.is_dir(), file.is_file(), file.is_pattern) == (False, True, False)
    assert (pattern.is_dir(), pattern.is_file(), pattern.is_pattern) == (False, False, True)
    assert [each.exists() for each in (place, file, pattern, none)] == [True, True, True, False]
    assert not (place / "x*").exists()
    assert place.children == (["_spark", "b"], ["a.csv"])
    assert file.parent == place


@pytest.mark.slow
def test_content(place: Location) -> None:
    file = place / "b" / "c.csv"
    assert file.read() == b"b/c.csv"
    assert file.local.read_bytes() == b"b/c.csv"
    copy, is_local = file.local, file.is_local
    del file
    gc.collect()
    assert copy.exists() == is_local
    file = place / "b" / "c.csv"
    before = file.modified()
    ObjectStore(place.uri).write("b/c.csv", b"other content")
    assert (place / "b" / "c.csv").modified() != before


def test_a_name_that_looks_like_a_pattern(place: Location) -> None:
    ObjectStore(place.uri).write("e [2]/f.csv", b"")
    file, folder = place / "b/d[1].csv", place / "e [2]"
    assert (file.is_file(), file.is_pattern, file.exists()) == (True, False, True)
    assert below(place, file.files()) == ["b/d[1].csv"]
    assert (folder.is_dir(), folder.is_pattern, folder.exists()) == (True, False, True)
    assert below(place, folder.files()) == ["e [2]/f.csv"]
    assert (folder / "f.csv").is_file()
    assert below(place, (place / "b/[cd]*.csv").files()) == ["b/c.csv", "b/d[1].csv"]


@pytest.mark.parametrize(
    ("uri", "name", "ending"),
    [
        ("/x/Rows.CSV.gz", "Rows.CSV.gz", ".csv"),
        ("/x/rows.tar.zst", "rows.tar.zst", ".tar"),
        ("s3://bucket/a b.parquet", "a b.parquet", ".parquet"),
        ("https://host/a%20b.csv?x=y.z&c=*", "a b.csv", ".csv"),
        ("https://host/folder/", "folder", ""),
    ],
)
def test_names_and_endings(uri: str, name: str, ending: str) -> None:
    location = Location(uri)
    assert (location.name, location.ending) == (name, ending)
    assert not location.is_pattern


def test_remote_locations_have_no_path() -> None:
    with pytest.raises(InputError, match="expected a local path, got s3://bucket/x: copy it"):
        _ = Location("s3://bucket/x").path
    with pytest.raises(NotFoundError, match="no file at memory://nothing/here"):
        Location("memory://nothing/here").blob()
    with pytest.raises(SpecError, match=r"expected a path, s3://.*, got nope://x"):
        Location("nope://x").exists()


def test_revisions_differ() -> None:
    first, second = (Blob("x", 1, revision) for revision in ('"0a"', '"0b"'))
    assert revision_number(first) != revision_number(second)
    assert 0 <= revision_number(first) < 2**63


def test_distinct_names() -> None:
    files = [Location(f"s3://bucket/x/{name}") for name in ("a/1.csv", "a/2.csv", "b/1.csv")]
    assert distinct_names(files) == ["a/1.csv", "a/2.csv", "b/1.csv"]
    assert distinct_names(files[:2]) == ["1.csv", "2.csv"]
    assert distinct_names(files[:1]) == ["1.csv"]


def test_locations_ask_a_server_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=60)

    def stat(_: ObjectStore, name: str = "") -> Blob | None:
        together.wait()
        return Blob(name, 1, "1")

    monkeypatch.setattr(ObjectStore, "stat", stat)
    places = [Location(f"memory://place/{number}") for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(Location.is_file, places)) == [True, True]

"""The cache of folders from buckets: leases, damage, eviction, other processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timonel.storage.content_cache import CONTENT, CacheError, ContentCache

URI = "s3://bucket/things"
MARK = "0" * 32


def fill(cache: ContentCache, key: str, content: bytes = b"content") -> None:
    with cache.partial(URI, key) as folder:
        assert folder is not None
        (folder / CONTENT / "sub").mkdir(parents=True)
        file = folder / CONTENT / "sub" / "file"
        file.write_bytes(content)
        cache.adopt(folder, URI, key, MARK)


@pytest.fixture
def cache(tmp_path: Path) -> ContentCache:
    return ContentCache(tmp_path / "cache", 1 << 30)


def test_an_entry_is_kept_and_leased(cache: ContentCache) -> None:
    assert cache.lease(URI, "a", MARK) is None
    fill(cache, "a")
    lease = cache.lease(URI, "a", MARK)
    assert lease is not None
    assert (lease.path / "sub" / "file").read_bytes() == b"content"
    assert (lease.path.parent.name, lease.path.name) == ("things", "a")
    assert cache.lease(URI, "a", "1" * 32) is None, "another fingerprint"
    assert cache.lease("s3://other/things", "a", MARK) is None
    lease.release()
    lease.release()


@pytest.mark.parametrize("sizes_only", [False, True])
def test_a_damaged_entry_is_removed(cache: ContentCache, sizes_only: bool) -> None:
    fill(cache, "a")
    lease = cache.lease(URI, "a", MARK)
    assert lease is not None
    (lease.path / "sub" / "file").write_bytes(b"c0ntent")
    lease.release()
    found = cache.lease(URI, "a", MARK, sizes_only=sizes_only)
    assert (found is not None) is sizes_only
    if found is not None:
        (found.path / "sub" / "file").write_bytes(b"short")
        found.release()
    assert cache.lease(URI, "a", MARK, sizes_only=sizes_only) is None
    assert not cache.has(URI, "a", MARK)


def test_the_least_recently_used_entries_make_room_unless_they_are_leased(
    tmp_path: Path,
) -> None:
    cache = ContentCache(tmp_path / "cache", 3500)
    for number, key in enumerate("abc"):
        fill(cache, key, b"x" * 1000)
        lease = cache.lease(URI, key, MARK)
        assert lease is not None
        lease.release()
        os.utime(lease.path.parents[1], (number, number))
    held = cache.lease(URI, "a", MARK)
    assert held is not None
    os.utime(held.path.parents[1], (0, 0))
    cache.make_room(1000, tmp_path / "new")
    assert [key for key in "abc" if cache.has(URI, key, MARK)] == ["a", "c"]
    with pytest.raises(CacheError, match="has no room for"):
        cache.make_room(1 << 60, tmp_path / "new")
    assert cache.has(URI, "a", MARK)
    held.release()


def test_one_process_downloads_an_entry(cache: ContentCache) -> None:
    with cache.partial(URI, "a") as folder, cache.partial(URI, "a") as other:
        assert folder is not None
        assert other is None


def test_a_listing_names_what_is_still_there(cache: ContentCache) -> None:
    fill(cache, "1")
    cache.save_listing(URI, "http://one", {"1": MARK, "2": MARK})
    assert cache.entries(URI, "http://one") == {"1": MARK}
    assert cache.entries(URI, "http://two") == {}, "a bucket of the same name"
    assert cache.entries("s3://other", "http://one") == {}


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CacheError, match=r"cannot write to the cache in .*file.*: Not a directory"),
        ContentCache(tmp_path / "file", 1).partial(URI, "a"),
    ):
        pass

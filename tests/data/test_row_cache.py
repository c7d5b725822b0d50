from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.row_cache import RowCache, RowLayout
from timonel.errors import InputError

LAYOUT = RowLayout(20, (((3, 2), np.dtype(np.float32)), ((), np.dtype(np.int64))))


def values(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(rows, 6).reshape(-1, 3, 2).astype(np.float32) / 7, rows * 10


def put(cache: RowCache, *rows: int) -> None:
    cache.write(np.array(rows), *values(np.array(rows)))


def found(cache: RowCache) -> list[int]:
    """Return the rows that are present, after a check of their values."""
    rows = np.arange(LAYOUT.rows)
    present, *arrays = cache.read(rows)
    for array, expected in zip(arrays, values(rows), strict=True):
        assert array.dtype == expected.astype(array.dtype).dtype
        np.testing.assert_array_equal(array[present], expected[present].astype(array.dtype))
    return rows[present].tolist()


@given(st.lists(st.lists(st.integers(0, 19), min_size=1), max_size=5))
def test_rows_that_were_written_are_found(writes: list[list[int]]) -> None:
    cache = RowCache.in_memory(LAYOUT, LAYOUT.bytes)
    for rows in writes:
        put(cache, *rows)
    assert found(cache) == sorted({row for rows in writes for row in rows})


def test_processes_share_a_file(tmp_path: Path) -> None:
    one, other = (RowCache.on_disk(LAYOUT, tmp_path / "new", "name") for _ in range(2))
    put(one, 3, 5)
    put(other, 4)
    assert found(one) == found(other) == [3, 4, 5]
    assert found(RowCache.on_disk(LAYOUT, tmp_path / "new", "other")) == []


@pytest.mark.parametrize("row", [0, 7, 19])
def test_a_damaged_row_is_absent(tmp_path: Path, row: int) -> None:
    cache = RowCache.on_disk(LAYOUT, tmp_path, "name")
    put(cache, *range(20))
    path = tmp_path / "name.rows"
    content = bytearray(path.read_bytes())
    content[4 * 20 + 32 * row + 5] ^= 1
    path.write_bytes(content)
    assert found(cache) == [each for each in range(20) if each != row]
    put(cache, row)
    assert found(cache) == list(range(20))


def test_a_truncated_file_has_the_rows_before(tmp_path: Path) -> None:
    cache = RowCache.on_disk(LAYOUT, tmp_path, "name")
    put(cache, *range(20))
    with (tmp_path / "name.rows").open("r+b") as file:
        file.truncate(4 * 20 + 32 * 6 + 31)
    assert found(cache) == list(range(6))


def test_a_full_disk_only_ends_the_writing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = RowCache.on_disk(LAYOUT, tmp_path, "name")
    with limited_files(4 * 20 + 32 * 6 + 8):
        put(cache, *range(20))
        put(cache, 0)
    assert found(cache) == list(range(6))
    assert caplog.messages == ["the cache of rows is incomplete: File too large"]


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Let files grow to ``size`` bytes only."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_too_little_room(tmp_path: Path) -> None:
    huge = RowLayout(10**12, LAYOUT.arrays)
    with pytest.raises(InputError, match=r"needs 36\.0 TB of memory, more than the limit of 1.0 G"):
        RowCache.in_memory(huge, 10**9)
    with pytest.raises(InputError, match=r"needs 36\.0 TB more in .* free: give cache= a folder"):
        RowCache.on_disk(huge, tmp_path, "name")


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write a cache to .*file: File exists"):
        RowCache.on_disk(LAYOUT, tmp_path / "file", "name")

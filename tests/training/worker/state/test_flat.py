"""Large files are written past the cache where that works, and are what was written."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import CorruptError
from timonel.training.worker.state import flat


def some_bytes(size: int) -> flat.Bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


def read(path: Path, digest: str, sizes: list[int]) -> list[flat.Bytes]:
    with flat.Reader(path, digest) as file:
        found = [file.read(size) for size in sizes]
        file.check()
    return found


@given(sizes=st.lists(st.sampled_from([0, 1, 63, 64, 4096, 5000, 1 << 20]), max_size=5))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("flat") / "file"
    contents = [some_bytes(size) for size in sizes]
    digest = flat.write(path, contents)
    assert path.stat().st_size == sum(sizes)
    whole = b"".join(content.tobytes() for content in contents)
    assert digest == f"crc32c:{google_crc32c.value(whole):08x}"
    for content, found in zip(contents, read(path, digest, sizes), strict=True):
        assert np.array_equal(content, found)


@pytest.mark.parametrize("size", [(16 << 20) - 1, 16 << 20, (20 << 20) + 4097])
def test_large_files_are_whole(tmp_path: Path, size: int) -> None:
    content = some_bytes(size)
    digest = flat.write(tmp_path / "file", [content[:5], content[5:]])
    assert (tmp_path / "file").read_bytes() == content.tobytes()
    assert np.array_equal(read(tmp_path / "file", digest, [size])[0], content)


@pytest.mark.parametrize("where", ["open", "write"])
def test_a_file_system_without_a_way_past_its_cache_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    original = getattr(os, where)

    def refuse(*args: object) -> object:
        flags = args[1] if where == "open" else _flags(args[0])
        if int(flags) & os.O_DIRECT:  # type: ignore[call-overload] # a number in both cases
            raise OSError(errno.EINVAL, "Invalid argument")
        return original(*args)

    monkeypatch.setattr(os, where, refuse)
    content = some_bytes(17 << 20)
    flat.write(tmp_path / "file", [content])
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == content.tobytes()


def _flags(descriptor: object) -> int:

    return fcntl.fcntl(descriptor, fcntl.F_GETFL)  # type: ignore[call-overload, no-any-return] # a number


def test_a_bit_that_has_changed_is_noticed(tmp_path: Path) -> None:
    content = some_bytes(1 << 16)
    digest = flat.write(tmp_path / "file", [content])
    content[777] ^= 4
    (tmp_path / "file").write_bytes(content.tobytes())
    with pytest.raises(CorruptError, match="digest"):
        read(tmp_path / "file", digest, [1 << 16])
    with pytest.raises(CorruptError, match="is missing"):
        read(tmp_path / "none", digest, [1])


def test_a_full_disk_is_called_that() -> None:
    with pytest.raises(OSError, match="No space left on device"):
        flat.write(Path("/dev/full"), [some_bytes(100)])

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from timonel.data.records import (
    compress,
    frame,
    masked_crc,
    members,
    read_appended,
    read_records,
)
from timonel.errors import CorruptError

PAYLOADS = [b"", b"one", b"x" * 1000]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "shard"
    path.write_bytes(b"".join(b"".join(frame(payload)) for payload in PAYLOADS))
    return path


def test_records_come_back_in_order(shard: Path) -> None:
    assert list(read_records(shard)) == PAYLOADS


def test_an_empty_shard_has_no_records(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert list(read_records(path)) == []


def test_the_mask_is_that_of_the_format() -> None:
    # CRC-32C of "123456789" is 0xe3069283 (RFC 3720); the mask rotates it by 15 and adds.
    crc = 0xE3069283
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    assert masked_crc(b"123456789") == (rotated + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (2, "a length with a wrong checksum at byte 0"),
        (16 + 13, "a payload with a wrong checksum at byte 16"),
    ],
)
def test_a_changed_byte_is_found(shard: Path, position: int, message: str) -> None:
    content = bytearray(shard.read_bytes())
    content[position] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptError, match=message) as error:
        list(read_records(shard))
    assert str(shard) in str(error.value)


@pytest.mark.parametrize(
    ("cut", "message"),
    [(500, "a truncated record at byte 35"), (1011, "a truncated header at byte 35")],
)
def test_a_shard_that_is_cut_off_is_found(shard: Path, cut: int, message: str) -> None:
    shard.write_bytes(shard.read_bytes()[:-cut])
    with pytest.raises(CorruptError, match=message):
        list(read_records(shard))


def test_a_length_beyond_the_file_is_found(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**60)
    path = tmp_path / "long"
    path.write_bytes(length + struct.pack("<I", masked_crc(length)) + b"abcd")
    with pytest.raises(CorruptError, match="truncated"):
        list(read_records(path))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match=r"cannot read the shard .*gone: No such file"):
        list(read_records(tmp_path / "gone"))


def test_a_growing_file_is_read_record_by_record(shard: Path) -> None:
    content = shard.read_bytes()
    path = shard.with_name("growing")
    found: list[bytes] = []
    offset = 0
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        for payload, following in read_appended(path, offset):
            found.append(payload)
            offset = following
        assert offset <= size
    assert found == PAYLOADS
    assert offset == len(content)
    path.write_bytes(content + b"".join(frame(b"new"))[:-1] + b"!")
    with pytest.raises(CorruptError, match=f"wrong checksum at byte {len(content)}"):
        list(read_appended(path, offset))


def test_bombs_are_refused_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.tfrecord"
    length = struct.pack("<Q", (1 << 31) + 1)
    path.write_bytes(length + struct.pack("<I", masked_crc(length)) + b"x")
    for compression in ("none", "gzip"):
        if compression == "gzip":
            path.write_bytes(gzip.compress(path.read_bytes()))
        with pytest.raises(CorruptError, match="a record of 2,147,483,649 bytes, more than 2 GiB"):
            list(read_records(path, compression))  # type: ignore[arg-type] # a literal
    monkeypatch.setattr("timonel.data.records.MAX_BYTES", 1 << 20)
    with pytest.raises(CorruptError, match="the member at byte 0 has more than 2 GiB"):
        list(members(compress(bytes(1 << 24)), path))
    assert [part for _, part in members(compress(b"a") + compress(b"b"), path)] == [b"a", b"b"]


def test_a_missing_compressed_shard(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="gone"):
        list(read_records(tmp_path / "gone", "gzip"))

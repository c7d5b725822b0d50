"""TFRecord framing.

Each record is its length (uint64), the masked CRC-32C of that length, the payload, and the masked
CRC-32C of the payload, all little-endian.
"""

from __future__ import annotations

import errno
import gzip
import mmap
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from timonel.data.schema import Compression
from timonel.errors import CorruptError, InputError, TimonelError
from timonel.storage.regular_files import open_regular

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 31
"""zlib's window bits for the largest window in gzip's format."""
_PIECE_BYTES = 1 << 17
MAX_BYTES = 1 << 31
"""Limit of a record, as of any message of protobuf, and of a gzip member when decompressed."""
CRC_BYTES = 4
"""Bytes of a checksum."""
FRAME_BYTES = 16
"""Bytes that framing adds to a payload."""
HEADER_BYTES = 12
"""Bytes of a frame before the payload."""


@dataclass(frozen=True, slots=True)
class Span:
    """Position of a record's payload in its shard, in bytes."""

    offset: int
    length: int


def frame(payload: bytes) -> tuple[bytes, bytes, bytes]:
    """Return header, payload and footer of a record, in file order."""
    length = _LENGTH.pack(len(payload))
    return length + _CRC.pack(masked_crc(length)), payload, _CRC.pack(masked_crc(payload))


def masked_crc(content: bytes) -> int:
    """Return the CRC-32C of ``content``, masked as TFRecord files store it."""
    crc: int = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def read_records(path: Path, compression: Compression = "none") -> Iterator[bytes]:
    """Yield the payloads of a shard in file order, with checksums verified."""
    if compression == "gzip":
        try:
            yield from read_stream(path)
        except OSError as error:
            raise unreadable_shard(path, error) from error
        return
    with mapped(path) as content:
        for span in spans(content, path):
            yield check_payload(
                content[span.offset : span.offset + span.length + CRC_BYTES], span, path
            )


def compress(content: bytes) -> bytes:
    """Return ``content`` as a gzip member, without names and times."""
    compressor = zlib.compressobj(wbits=_GZIP)
    return compressor.compress(content) + compressor.flush()


def members(content: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the uncompressed content of each gzip member."""
    view, start = memoryview(content), 0
    while start < len(view):
        member, parts, position, size = zlib.decompressobj(wbits=_GZIP), [], start, 0
        while not member.eof:
            # In pieces, because the object copies the input after the member's end.
            piece = view[position : position + _PIECE_BYTES]
            if not piece:
                raise _not_gzip(path, f"the member at byte {start} is truncated")
            try:
                parts.append(member.decompress(piece))
            except zlib.error as error:
                raise _not_gzip(path, f"{error} in the member at byte {start}") from error
            size += len(parts[-1])
            if size > MAX_BYTES:
                raise _not_gzip(path, f"the member at byte {start} has more than 2 GiB")
            position += len(piece)
        yield start, b"".join(parts)
        start = position - len(member.unused_data)


def starts_with_record(path: Path) -> bool:
    """Tell whether a file, with or without gzip, starts with the header of a record."""
    try:
        with open_regular(path) as file:
            header = file.read(HEADER_BYTES)
        if header.startswith(_GZIP_MAGIC):
            with gzip.open(path) as content:
                header = content.read(HEADER_BYTES)
        return len(header) == HEADER_BYTES and _length(header, path, 0) >= 0
    except (OSError, EOFError, zlib.error, CorruptError):
        return False


def read_stream(path: Path) -> Iterator[bytes]:
    """Yield the payloads of any TFRecord file, with or without gzip, in bounded memory."""
    with open_regular(path) as file:
        is_gzip = file.read(2) == _GZIP_MAGIC
    place = 0
    opener: Any = gzip.open if is_gzip else open
    with opener(path, "rb") as file:
        try:
            while header := file.read(HEADER_BYTES):
                if len(header) < HEADER_BYTES:
                    raise _corrupt(path, place, "a truncated header")
                span = Span(place + HEADER_BYTES, _length(header, path, place))
                framed = file.read(span.length + CRC_BYTES)
                if len(framed) < span.length + CRC_BYTES:
                    raise _corrupt(path, place, "a truncated record")
                yield check_payload(framed, span, path)
                place += FRAME_BYTES + span.length
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise _not_gzip(path, str(error)) from error


def read_appended(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """Yield the complete records of a growing file, and the offset of the next one.

    A record that is cut off at the end of the file is still being written.
    """
    with path.open("rb") as file:
        file.seek(offset)
        while len(header := file.read(HEADER_BYTES)) == HEADER_BYTES:
            span = Span(offset + HEADER_BYTES, _length(header, path, offset))
            framed = file.read(span.length + CRC_BYTES)
            if len(framed) < span.length + CRC_BYTES:
                return
            offset += FRAME_BYTES + span.length
            yield check_payload(framed, span, path), offset


def check_payload(framed: bytes, span: Span, path: Path) -> bytes:
    """Return the payload of ``framed``, a payload followed by its checksum."""
    payload, found = framed[: span.length], framed[span.length :]
    if len(found) != CRC_BYTES or _CRC.unpack(found)[0] != masked_crc(payload):
        raise _corrupt(path, span.offset - HEADER_BYTES, "a payload with a wrong checksum")
    return payload


def spans(content: mmap.mmap | bytes, path: Path, start: int = 0) -> Iterator[Span]:
    """Yield the positions of the payloads in framed records, without reading the payloads."""
    position, end = start, len(content)
    while position < end:
        header = content[position : position + HEADER_BYTES]
        if len(header) < HEADER_BYTES:
            raise _corrupt(path, position, "a truncated header")
        length = _length(header, path, position)
        if position + FRAME_BYTES + length > end:
            raise _corrupt(path, position, "a truncated record")
        yield Span(position + HEADER_BYTES, length)
        position += FRAME_BYTES + length


def _length(header: bytes, path: Path, position: int) -> int:
    if _CRC.unpack_from(header, _LENGTH.size)[0] != masked_crc(header[: _LENGTH.size]):
        raise _corrupt(path, position, "a length with a wrong checksum")
    length: int = _LENGTH.unpack_from(header)[0]
    if length > MAX_BYTES:
        raise _corrupt(path, position, f"a record of {length:,} bytes, more than 2 GiB")
    return length


class mapped:  # noqa: N801 - used as a with statement's word
    """Context manager for a file's memory-mapped content; ``b""`` for an empty file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def __enter__(self) -> mmap.mmap | bytes:
        try:
            with open_regular(self._path) as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            return b""
        except OSError as error:
            raise unreadable_shard(self._path, error) from error
        return self._map

    def __exit__(self, *_: object) -> None:
        if self._map is not None:
            self._map.close()


class TooManyOpenFilesError(InputError):
    """The process may open no more files."""


def unreadable_shard(path: Path, error: OSError) -> TimonelError:
    """Return the error for a shard that cannot be opened."""
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return TooManyOpenFilesError(
            f"cannot read the shard {path}: too many open files",
            hint="close some, or raise the limit with 'ulimit -n'",
        )
    return CorruptError(
        f"cannot read the shard {path}: {error.strerror or error}", hint="convert the source again"
    )


def _not_gzip(path: Path, problem: str) -> CorruptError:
    return CorruptError(
        f"{path} is not valid gzip data: {problem}",
        hint="the file was changed or truncated: convert the source again",
    )


def _corrupt(path: Path, offset: int, found: str) -> CorruptError:
    return CorruptError(
        f"{path} has {found} at byte {offset}",
        hint="the file was changed or truncated: convert the source again",
    )

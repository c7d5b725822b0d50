"""Text files of any encoding and compression, read as UTF-8."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import functools
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

import pyarrow as pa

from timonel.errors import DataError, SpecError
from timonel.storage.location import Location

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_BLOCK_BYTES = 1 << 20
_SAMPLE_BYTES = 4096
_FALLBACK = "cp1252"
_UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)


@contextlib.contextmanager
def open_lines(location: Location) -> Iterator[BinaryIO]:
    """Open a file of lines, decompressed, whose encoding the caller checks."""
    try:
        with _decompressed(location) as file:
            yield file
    except _UNREADABLE as error:
        raise _unreadable(location, error) from error


class TextFile:
    """Lines of a text file as UTF-8, decompressed and without a byte order mark.

    By default the encoding is UTF-16 with a byte order mark, else UTF-8, else Windows-1252 with a
    warning.
    """

    def __init__(self, location: Location, encoding: str | None = None) -> None:
        self.location = location
        self.notes: list[str] = []
        self.warnings: list[str] = []
        if encoding is not None:
            _check_codec(encoding)
        self._encoding = encoding

    def open(self) -> BinaryIO:
        """Open the content as UTF-8."""
        encoding = self.encoding
        file = _decompressed(self.location)
        if encoding == "utf-8":
            return file
        return io.BufferedReader(_Recoded(self, file, encoding), _BLOCK_BYTES)

    @functools.cached_property
    def encoding(self) -> str:
        """Name of the encoding; ``utf-8`` if nothing has to be converted."""
        with _decompressed(self.location) as file:
            start = self._read(file, _SAMPLE_BYTES)
        if self._encoding is not None:
            encoding = self._encoding
            if codecs.lookup(encoding).name == "utf-8" and not start.startswith(codecs.BOM_UTF8):
                encoding = "utf-8"
            self._check(encoding)
            return encoding
        marked = _by_mark(start)
        if marked is not None:
            self._check(marked)
            return marked
        found = self._undecodable("utf-8")
        if found is None:
            return "utf-8"
        return self._guess(*found)

    def _guess(self, line: int, content: bytes, position: int) -> str:
        """Return Windows-1252, with a warning that shows a line, or fail."""
        if self._undecodable(_FALLBACK) is not None:
            raise DataError(
                f"{self.location} is not UTF-8: line {line} has the byte {content[position]:#04x}",
                hint="name its encoding with --encoding",
            )
        words = content.decode(_FALLBACK)[max(0, position - 20) : position + 20].strip()
        self.warnings.append(
            f"{self.location.name} is not UTF-8, and was read as Windows-1252: {words!r} in line "
            f"{line}: give --encoding if that is wrong"
        )
        return _FALLBACK

    def _check(self, encoding: str) -> None:
        if (found := self._undecodable(encoding)) is not None:
            line, content, position = found
            raise DataError(
                f"{self.location} is not {encoding}: line {line} has the byte "
                f"{content[position]:#04x}",
                hint="give another --encoding",
            )

    def _undecodable(self, encoding: str) -> tuple[int, bytes, int] | None:
        """Return number, content and position of the first line that cannot be decoded."""
        decoder = codecs.getincrementaldecoder(encoding)()
        line = 1
        with _decompressed(self.location) as file:
            while True:
                block = self._read(file, _BLOCK_BYTES)
                try:
                    line += decoder.decode(block, not block).count("\n")
                except UnicodeDecodeError as error:
                    content: bytes = error.object
                    start = content.rfind(b"\n", 0, error.start) + 1
                    end = content.find(b"\n", error.start)
                    line += content.count(b"\n", 0, error.start)
                    whole = content[start : end if end >= 0 else len(content)]
                    return line, whole, error.start - start
                except UnicodeError:  # UTF-16 and UTF-32 without their mark
                    return line, block[:1], 0
                if not block:
                    return None

    def _read(self, file: BinaryIO, size: int) -> bytes:
        try:
            return file.read(size)
        except _UNREADABLE as error:
            raise _unreadable(self.location, error) from error


class _Recoded(io.RawIOBase):
    """Content of a file converted to UTF-8."""

    def __init__(self, text: TextFile, file: BinaryIO, encoding: str) -> None:
        self._text = text
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # any buffer
        while not self._rest:
            block = self._text._read(self._file, _BLOCK_BYTES)
            text = self._decoder.decode(block, not block)
            self._rest = text.encode()
            if not block:
                break
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _decompressed(location: Location) -> BinaryIO:
    path = location.local
    try:
        with path.open("rb") as file:
            start = file.read(6)
        kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "")
        match kind:
            case "gzip":
                return cast("BinaryIO", gzip.open(path))
            case "bz2":
                return cast("BinaryIO", bz2.open(path))
            case "xz":
                return cast("BinaryIO", lzma.open(path))
            case "zstd":
                return io.BufferedReader(pa.CompressedInputStream(str(path), "zstd"))
        return path.open("rb")
    except OSError as error:
        raise _unreadable(location, error) from error


def _unreadable(location: Location, error: Exception) -> DataError:
    return DataError(f"cannot read {location}: {getattr(error, 'strerror', None) or error}")


def _check_codec(encoding: str) -> None:
    try:
        # Python has codecs for other purposes, such as base64.
        b"a".decode(encoding, "replace")
        codecs.getincrementaldecoder(encoding)
    except LookupError:
        raise SpecError(
            f"unknown encoding {encoding!r}", hint="use a name such as utf-8, utf-16 or cp1252"
        ) from None


def _by_mark(start: bytes) -> str | None:
    """Return the encoding of a byte order mark, or of UTF-16 without one; else None."""
    if start.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Mostly Latin text in UTF-16 has a zero in each second byte.
    if start[1::2].count(0) * 2 > len(start) // 2:
        return "utf-16-le"
    if start[0::2].count(0) * 2 > len(start) // 2:
        return "utf-16-be"
    return None

"""Objects of a bucket as listed: names, sizes, revisions and checksums. Without requests."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import google_crc32c

_logger = logging.getLogger(__name__)
_LONGEST_NAME_BYTES = 255
UNKNOWN_SIZE = -1
_BLOCK_BYTES = 1 << 20
_PART_BYTES = 50 << 20
"""Size of the parts in which s3fs uploads files of 100 MiB and more."""
_MD5 = re.compile(r"[0-9a-f]{32}")
# Fields of S3, GCS and other stores that change when an object is replaced, best first.
_REVISIONS = (
    "generation",
    "ETag",
    "etag",
    "LastModified",
    "Last-Modified",
    "mtime",
    "updated",
    "created",
)


@dataclass(frozen=True)
class Blob:
    """An object of a version.

    Args:
        name: The object's name below the version's folder.
        size: Size in bytes; `UNKNOWN_SIZE` if a web server does not tell.
        revision: A text that changes when the object is replaced.
        md5: MD5 of the content as reported by the store, hexadecimal; None if unknown.
        crc32c: CRC32C, likewise.
    """

    name: str
    size: int
    revision: str
    md5: str | None = None
    crc32c: int | None = None


def blobs_from(found: Mapping[str, Mapping[str, Any]], root: str) -> tuple[Blob, ...]:
    """Return the objects below the folder ``root`` that can be files, by name.

    Others are skipped, and logged once: names that lead out of the folder or are too long, and
    objects that would be a folder as well.

    Args:
        found: fsspec's information about each object, by full name.
    """
    prefix = root.rstrip("/") + "/"
    names = {
        path[len(prefix) :]: info
        for path, info in found.items()
        # Some tools create an empty object for a folder.
        if path.startswith(prefix) and not path.endswith("/")
    }
    valid = {name for name in names if all(map(is_file_name, name.split("/")))}
    folders = {str(parent) for name in valid for parent in PurePosixPath(name).parents}
    for name in names.keys() - (valid - folders):
        _log_skipped(f"{root}/{name}")
    return tuple(blob_from(name, names[name]) for name in sorted(valid - folders))


def is_file_name(name: str) -> bool:
    """Return whether a file or folder can have a name."""
    return (
        name not in {"", ".", ".."}
        and "\0" not in name
        and len(os.fsencode(name)) <= _LONGEST_NAME_BYTES
    )


@functools.lru_cache(maxsize=1000)
def _log_skipped(place: str) -> None:
    _logger.warning("skipped the object %r: its name cannot be that of a file", place)


def fingerprint(blobs: Iterable[Blob]) -> str:
    """Return a hash that changes when an object is added, removed or replaced."""
    digest = hashlib.blake2b(digest_size=16)
    for blob in blobs:
        text = f"{blob.name}\0{blob.size}\0{blob.revision}\n"
        digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()


class Checksums:
    """Size, CRC32C and MD5 of a growing content."""

    def __init__(self) -> None:
        self.size = 0
        self.crc32c = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    @property
    def md5(self) -> str:
        """MD5, hexadecimal."""
        return self._md5.hexdigest()

    def add(self, chunk: bytes) -> None:
        """Append a chunk."""
        self.size += len(chunk)
        self.crc32c = google_crc32c.extend(self.crc32c, chunk)
        self._md5.update(chunk)

    def match(self, blob: Blob) -> bool:
        """Return whether size and checksums are those of an object, as far as known."""
        return (
            blob.size in {self.size, UNKNOWN_SIZE}
            and blob.crc32c in {None, self.crc32c}
            and blob.md5 in {None, self.md5}
        )


def is_copy(path: Path, blob: Blob) -> bool | None:
    """Return whether a file has an object's content; None if no checksum can tell."""
    if path.stat().st_size != blob.size:
        return False
    if blob.md5 is None and blob.crc32c is None:
        return True if _etag_of_parts(path) == blob.revision.strip('"').lower() else None
    return checksums_of(path).match(blob)


def _etag_of_parts(path: Path) -> str:
    """Return the ETag that S3 gives a file that s3fs uploads in parts: an MD5 of their MD5s."""
    parts = []
    with path.open("rb") as file:
        while part := file.read(_PART_BYTES):
            parts.append(hashlib.md5(part, usedforsecurity=False).digest())
    joined = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
    return f"{joined}-{len(parts)}"


def checksums_of(path: Path) -> Checksums:
    """Return size and checksums of a file."""
    sums = Checksums()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            sums.add(block)
    return sums


def blob_from(name: str, info: Mapping[str, Any]) -> Blob:
    """Return an object from fsspec's information about it."""
    revision = next((str(info[key]) for key in _REVISIONS if info.get(key)), "")
    etag = str(info.get("ETag") or "").strip('"').lower()
    md5, crc32c = _decoded(info.get("md5Hash"), 16), _decoded(info.get("crc32c"), 4)
    return Blob(
        name,
        UNKNOWN_SIZE if info.get("size") is None else int(info["size"]),
        revision,
        # The ETag of a multipart upload contains a dash and is not an MD5.
        etag if _MD5.fullmatch(etag) else md5.hex() if md5 else None,
        None if crc32c is None else int.from_bytes(crc32c, "big"),
    )


def _decoded(text: Any, size: int) -> bytes | None:
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except binascii.Error:
        return None
    return raw if len(raw) == size else None

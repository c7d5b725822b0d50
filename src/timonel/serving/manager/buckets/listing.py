"""What a bucket says of a version: its objects, and whether they are all there. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MD5 = re.compile(r"[0-9a-f]{32}")
_SHARD = re.compile(r"(variables/variables)\.data-(\d{5})-of-(\d{5})")
# What tells that an object was replaced, in the words of S3, GCS and other stores, best first.
_MARKS = ("generation", "ETag", "etag", "LastModified", "mtime", "updated", "created")


@dataclass(frozen=True)
class Blob:
    """An object of a version.

    Args:
        name: Its name below the version's folder.
        size: Bytes.
        mark: A text that is another one once the object was replaced.
        md5: The digest of its content, as the store has it; none if it has none.
        crc32c: Its checksum, likewise.
    """

    name: str
    size: int
    mark: str
    md5: str | None = None
    crc32c: int | None = None


def blobs_from(found: Mapping[str, Mapping[str, Any]], root: str) -> tuple[Blob, ...]:
    """Return what was found below the folder ``root``, by name.

    Args:
        found: What fsspec tells of each object, by its whole name.
        root: The folder.

    Raises:
        ValueError: A name would lead out of the folder, or would be two places in it.
    """
    prefix = root.rstrip("/") + "/"
    names = {
        place[len(prefix) :]: info
        for place, info in found.items()
        # Some tools put an empty object where a folder is.
        if place.startswith(prefix) and not place.endswith("/")
    }
    for name in names:
        parts = name.split("/")
        if not all(parts) or {".", ".."} & set(parts) or "\0" in name:
            raise ValueError(f"expected names below the folder, got {name!r}")
        if any("/".join(parts[:count]) in names for count in range(1, len(parts))):
            raise ValueError(f"expected {name!r} to be a file or a folder, found both")
    return tuple(_blob(name, info) for name, info in sorted(names.items()))


def fingerprint(blobs: Iterable[Blob]) -> str:
    """Return a text that changes when an object is added, removed or replaced."""
    digest = hashlib.blake2b(digest_size=16)
    for blob in blobs:
        digest.update(f"{blob.name}\0{blob.size}\0{blob.mark}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def what_is_missing(blobs: Sequence[Blob]) -> str | None:
    """Return what a version visibly lacks; none if it may be whole.

    An object appears when all of it was uploaded, so a large one may lag minutes behind the
    others while nothing seems to change.
    """
    names = {blob.name for blob in blobs}
    if not names:
        return "it is empty"
    shards = [match for name in names if (match := _SHARD.fullmatch(name))]
    for match in shards:
        stem, count = match[1], int(match[3])
        wanted = {f"{stem}.data-{k:05}-of-{count:05}" for k in range(count)} | {f"{stem}.index"}
        if absent := sorted(wanted - names):
            return f"it has no {absent[0]} yet"
    if "variables/variables.index" in names and not shards:
        return "it has no variables/variables.data-00000-of-00001 yet"
    return None


def _blob(name: str, info: Mapping[str, Any]) -> Blob:
    mark = next((str(info[key]) for key in _MARKS if info.get(key)), "")
    etag = str(info.get("ETag") or "").strip('"').lower()
    return Blob(
        name,
        int(info.get("size") or 0),
        mark,
        # The tag of an object that was uploaded in parts has a dash, and is no digest of it.
        etag if _MD5.fullmatch(etag) else _hex(info.get("md5Hash")),
        _crc32c(info.get("crc32c")),
    )


def _hex(text: Any) -> str | None:
    raw = _decoded(text)
    return raw.hex() if raw is not None and len(raw) == 16 else None


def _crc32c(text: Any) -> int | None:
    raw = _decoded(text)
    return int.from_bytes(raw, "big") if raw is not None and len(raw) == 4 else None


def _decoded(text: Any) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except binascii.Error:
        return None

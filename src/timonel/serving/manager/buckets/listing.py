"""List and read the versions in a bucket, through fsspec and with timeouts."""

from __future__ import annotations

import base64
import binascii
import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from timonel.errors import TimonelError
from timonel.serving.manager.sources import version_number
from timonel.serving.status import Code, StatusError
from timonel.storage.uris import filesystem, normalise

LIST_TIMEOUT_S = 20.0
READ_TIMEOUT_S = 60.0
"""Timeout of a read of up to `CHUNK_BYTES` times `READS_AHEAD`."""
CHUNK_BYTES = 4 << 20
READS_AHEAD = 4
# Without these, a bucket that accepts connections and never answers blocks for minutes.
_S3 = {
    "use_listings_cache": False,
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 1}},
}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {"s3": _S3, "s3a": _S3}
_GCS = frozenset({"gs", "gcs"})
_MD5 = re.compile(r"[0-9a-f]{32}")
_SHARD = re.compile(r"(variables/variables)\.data-(\d{5})-of-(\d{5})")
# Fields of S3, GCS and other stores that change when an object is replaced, best first.
_REVISIONS = ("generation", "ETag", "etag", "LastModified", "mtime", "updated", "created")


class BucketError(StatusError):
    """An error of a bucket or its cache, as opposed to an error of the model."""


@dataclass(frozen=True)
class Blob:
    """An object of a version.

    Args:
        name: The object's name below the version's folder.
        size: Size in bytes.
        revision: A text that changes when the object is replaced.
        md5: MD5 of the content as reported by the store, hexadecimal; None if unknown.
        crc32c: CRC32C, likewise.
    """

    name: str
    size: int
    revision: str
    md5: str | None = None
    crc32c: int | None = None


class ModelBucket:
    """The versions below a URI. Not thread-safe: each thread needs its own.

    Args:
        uri: The base path, such as ``s3://models/digits``.
    """

    def __init__(self, uri: str) -> None:
        self.uri = normalise(uri)
        self._opened: tuple[Any, str] | None = None

    def versions(self) -> dict[int, str]:
        """Return the names of version folders, by number.

        Raises:
            BucketError: The bucket cannot be listed, or has nothing below the URI.
        """
        with _translated("list", self.uri):
            fs, root = self._open()
            found = _call(fs, "ls", root, detail=True, timeout_s=LIST_TIMEOUT_S)
        prefix = root.rstrip("/") + "/"
        paths = (str(each["name"]).rstrip("/") for each in found)
        # Some tools create an empty object for the folder itself.
        names = sorted(path[len(prefix) :] for path in paths if path.startswith(prefix))
        numbered = ((version_number(name), name) for name in names)
        return {number: name for number, name in numbered if number is not None}

    def blobs(self, name: str) -> tuple[Blob, ...]:
        """Return the objects of the version in the folder ``name``.

        Raises:
            BucketError: They cannot be listed, or their names are not valid file names.
        """
        place = posixpath.join(self.uri, name)
        with _translated("list", place):
            fs, root = self._open()
            folder = posixpath.join(root, name)
            return blobs_from(
                _call(fs, "find", folder, detail=True, timeout_s=LIST_TIMEOUT_S), folder
            )

    def read(self, name: str, blob: Blob, start: int) -> list[bytes]:
        """Return the next chunks of an object in order: at least one, none of them empty.

        Args:
            name: The version's folder.
            blob: The object.
            start: Offset of the first chunk; less than the object's size.

        Raises:
            BucketError: The first chunk could not be read completely.
        """
        with _translated("read", posixpath.join(self.uri, name, blob.name)):
            fs, root = self._open()
            last = min(blob.size, start + CHUNK_BYTES * READS_AHEAD)
            starts = list(range(start, last, CHUNK_BYTES))
            ends = [min(at + CHUNK_BYTES, blob.size) for at in starts]
            paths = [posixpath.join(root, name, blob.name)] * len(starts)
            chunks = _call(
                fs, "cat_ranges", paths, starts, ends, on_error="return", timeout_s=READ_TIMEOUT_S
            )
            return list(_complete(chunks, starts, ends))

    def _open(self) -> tuple[Any, str]:
        # Later than the constructor: some file systems look for credentials over the network.
        if self._opened is None:
            scheme = self.uri.partition("://")[0]
            options = _OPTIONS.get(scheme, {"use_listings_cache": False})
            fs, root = filesystem(self.uri, **options)
            if scheme in _GCS:
                # fsspec's own choice asks over gRPC for the bucket's kind. Emulators and many
                # firewalls do not offer that second service, and reading does not need the answer.
                from gcsfs.core import GCSFileSystem  # noqa: PLC0415 - an extra

                fs = GCSFileSystem(**options)
            self._opened = fs, root
        return self._opened


def blobs_from(found: Mapping[str, Mapping[str, Any]], root: str) -> tuple[Blob, ...]:
    """Return the objects below the folder ``root``, by name.

    Args:
        found: fsspec's information about each object, by full name.
        root: The folder.

    Raises:
        ValueError: A name leads out of the folder, or is both a file and a folder.
    """
    prefix = root.rstrip("/") + "/"
    names = {
        path[len(prefix) :]: info
        for path, info in found.items()
        # Some tools create an empty object for a folder.
        if path.startswith(prefix) and not path.endswith("/")
    }
    for name in names:
        parts = name.split("/")
        if not all(parts) or {".", ".."} & set(parts) or "\0" in name:
            raise ValueError(f"expected names below the folder, got {name!r}")
        if any("/".join(parts[:count]) in names for count in range(1, len(parts))):
            raise ValueError(f"a folder of {name!r} is a file as well")
    return tuple(_blob(name, info) for name, info in sorted(names.items()))


def fingerprint(blobs: Iterable[Blob]) -> str:
    """Return a hash that changes when an object is added, removed or replaced."""
    digest = hashlib.blake2b(digest_size=16)
    for blob in blobs:
        text = f"{blob.name}\0{blob.size}\0{blob.revision}\n"
        digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()


def is_complete(blobs: Sequence[Blob]) -> bool:
    """Return whether a version has all shards that the names of its variables announce.

    An object appears when its upload ends, so a large one may lag minutes behind the others while
    nothing seems to change.
    """
    names = {blob.name for blob in blobs}
    shards = [match for name in names if (match := _SHARD.fullmatch(name))]
    expected = set()
    for match in shards:
        stem, count = match[1], int(match[3])
        expected |= {f"{stem}.data-{k:05}-of-{count:05}" for k in range(count)} | {f"{stem}.index"}
    is_sharded = bool(shards) or "variables/variables.index" not in names
    return bool(names) and expected <= names and is_sharded


def _blob(name: str, info: Mapping[str, Any]) -> Blob:
    revision = next((str(info[key]) for key in _REVISIONS if info.get(key)), "")
    etag = str(info.get("ETag") or "").strip('"').lower()
    md5, crc32c = _decoded(info.get("md5Hash"), 16), _decoded(info.get("crc32c"), 4)
    return Blob(
        name,
        int(info.get("size") or 0),
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


def _call(fs: Any, method: str, *args: Any, timeout_s: float, **options: Any) -> Any:
    if not getattr(fs, "async_impl", False):
        return getattr(fs, method)(*args, **options)
    from fsspec.asyn import sync  # noqa: PLC0415 - only with a bucket

    return sync(fs.loop, getattr(fs, f"_{method}"), *args, timeout=timeout_s, **options)


def _complete(chunks: list[Any], starts: list[int], ends: list[int]) -> Iterator[bytes]:
    """Yield the chunks before the first incomplete one; raise if there are none."""
    for number, (chunk, start, end) in enumerate(zip(chunks, starts, ends, strict=True)):
        error = chunk if isinstance(chunk, BaseException) else None
        if error is None and len(chunk) != end - start:
            error = EOFError(f"received {len(chunk)} of {end - start} bytes")
        if error is None:
            yield bytes(chunk)
        elif number:
            return
        else:
            raise error


@contextmanager
def _translated(verb: str, place: str) -> Iterator[None]:
    try:
        yield
    except StatusError:
        raise
    except TimonelError as error:  # a package is missing
        raise BucketError(Code.FAILED_PRECONDITION, str(error)) from error
    except Exception as error:  # each file system raises its own vendor's classes
        reason = str(error).strip() or "timeout"
        raise BucketError(
            _code(error), f"Cannot {verb} {place}: {type(error).__name__}: {reason}"
        ) from error


def _code(error: Exception) -> Code:
    if isinstance(error, FileNotFoundError):
        return Code.NOT_FOUND
    if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
        return Code.PERMISSION_DENIED
    if isinstance(error, ValueError):
        return Code.FAILED_PRECONDITION
    return Code.UNAVAILABLE

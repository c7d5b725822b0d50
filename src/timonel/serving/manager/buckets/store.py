"""A model's base path in a bucket, read through fsspec with a limit to every wait."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from timonel.errors import TimonelError
from timonel.serving.manager.buckets.listing import Blob, blobs_from
from timonel.serving.manager.folders import version_number
from timonel.serving.status import Code, StatusError
from timonel.storage.uris import filesystem, normalise

LIST_S = 20.0
"""How long a listing may take."""
READ_S = 60.0
"""How long a read may take, of `CHUNK_BYTES` times `READS_AHEAD` at most."""
CHUNK_BYTES = 4 << 20
READS_AHEAD = 4
# Without these, a bucket that takes connections and never answers is waited for for minutes.
_S3 = {
    "use_listings_cache": False,
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 1}},
}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {"s3": _S3, "s3a": _S3}
_GCS = frozenset({"gs", "gcs"})
_ANY: Mapping[str, Any] = {"use_listings_cache": False}


class BucketError(StatusError):
    """A bucket did not give what was asked of it."""


class Bucket:
    """The versions below a URI. Not thread-safe: each thread has its own.

    Args:
        uri: The base path, such as ``s3://models/digits``.
    """

    def __init__(self, uri: str) -> None:
        self.uri = normalise(uri)
        self._opened: tuple[Any, str] | None = None

    def versions(self) -> dict[int, str]:
        """Return the folders that are versions, by number.

        Raises:
            BucketError: It cannot be told, or there is nothing at all.
        """
        with _told("list", self.uri):
            fs, root = self._open()
            found = _call(fs, "ls", root, detail=True, timeout_s=LIST_S)
        # Some tools put an empty object where the folder itself is.
        prefix = root.rstrip("/") + "/"
        places = (str(each["name"]).rstrip("/") for each in found)
        names = sorted(place[len(prefix) :] for place in places if place.startswith(prefix))
        numbered = ((version_number(name), name) for name in names)
        return {number: name for number, name in numbered if number is not None}

    def blobs(self, name: str) -> tuple[Blob, ...]:
        """Return the objects of the version in the folder ``name``; none if there are none.

        Raises:
            BucketError: It cannot be told, or their names cannot be files.
        """
        place = posixpath.join(self.uri, name)
        with _told("list", place):
            fs, root = self._open()
            folder = posixpath.join(root, name)
            found = _call(fs, "find", folder, detail=True, timeout_s=LIST_S)
            return blobs_from(found, folder)

    def read(self, name: str, blob: Blob, start: int) -> list[bytes]:
        """Return the next pieces of an object, in their order: at least one, and none is empty.

        Args:
            name: The version's folder.
            blob: The object.
            start: Where the first piece begins; less than the object's size.

        Raises:
            BucketError: Not even the first piece came whole.
        """
        with _told("read", posixpath.join(self.uri, name, blob.name)):
            fs, root = self._open()
            last = min(blob.size, start + CHUNK_BYTES * READS_AHEAD)
            starts = list(range(start, last, CHUNK_BYTES))
            ends = [min(at + CHUNK_BYTES, blob.size) for at in starts]
            places = [posixpath.join(root, name, blob.name)] * len(starts)
            pieces = _call(
                fs, "cat_ranges", places, starts, ends, on_error="return", timeout_s=READ_S
            )
            return list(_whole(pieces, starts, ends))

    def _open(self) -> tuple[Any, str]:
        # Later than the constructor: some file systems look for credentials over the network.
        if self._opened is None:
            scheme = self.uri.partition("://")[0]
            options = _OPTIONS.get(scheme, _ANY)
            fs, root = filesystem(self.uri, **options)
            self._opened = _over_http(options) if scheme in _GCS else fs, root
        return self._opened


def _over_http(options: Mapping[str, Any]) -> Any:
    """Return Google's file system as it was before it learnt about kinds of buckets.

    The one that fsspec gives asks over gRPC what kind a bucket is. That takes a second service to
    be reachable, which emulators and many firewalls lack, and reading needs no answer.
    """
    from gcsfs.core import GCSFileSystem  # noqa: PLC0415 - an extra

    return GCSFileSystem(**options)


def _call(fs: Any, method: str, *args: Any, timeout_s: float, **options: Any) -> Any:
    if not getattr(fs, "async_impl", False):
        return getattr(fs, method)(*args, **options)
    from fsspec.asyn import sync  # noqa: PLC0415 - only with a bucket

    return sync(fs.loop, getattr(fs, f"_{method}"), *args, timeout=timeout_s, **options)


def _whole(pieces: list[Any], starts: list[int], ends: list[int]) -> Iterator[bytes]:
    for number, (piece, start, end) in enumerate(zip(pieces, starts, ends, strict=True)):
        wrong = piece if isinstance(piece, BaseException) else None
        if wrong is None and len(piece) != end - start:
            wrong = EOFError(f"{len(piece)} bytes of {end - start} came")
        if wrong is None:
            yield bytes(piece)
        elif number:
            return
        else:
            raise wrong


@contextmanager
def _told(verb: str, place: str) -> Iterator[None]:
    """Turn what file systems raise into errors of ours."""
    try:
        yield
    except StatusError:
        raise
    except TimonelError as error:  # a package is missing
        raise BucketError(Code.FAILED_PRECONDITION, str(error)) from error
    except Exception as error:  # each file system raises its own vendor's classes
        reason = str(error).strip() or "no answer in time"
        raise BucketError(
            _code(error), f"cannot {verb} {place}: {type(error).__name__}: {reason}"
        ) from error


def _code(error: Exception) -> Code:
    if isinstance(error, FileNotFoundError):
        return Code.NOT_FOUND
    if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
        return Code.PERMISSION_DENIED
    if isinstance(error, ValueError):
        return Code.FAILED_PRECONDITION
    return Code.UNAVAILABLE

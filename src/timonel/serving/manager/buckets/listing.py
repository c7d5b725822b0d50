"""List and read the versions in a bucket, through fsspec and with timeouts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from timonel.errors import TimonelError
from timonel.serving.manager.sources import version_number
from timonel.serving.status import Code, StatusError
from timonel.storage.blobs import Blob, blobs_from
from timonel.storage.filesystems import endpoint, open_filesystem
from timonel.storage.uris import normalise

LIST_TIMEOUT_S = 20.0
READ_TIMEOUT_S = 60.0
"""Timeout of a read of up to `CHUNK_BYTES` times `READS_AHEAD`."""
CHUNK_BYTES = 4 << 20
READS_AHEAD = 4
# Publishers write one of these last.
_MODELS = frozenset({"saved_model.pb", "saved_model.pbtxt", "model.py"})
_SHARD = re.compile(r"(variables/variables)\.data-(\d{5})-of-(\d{5})")


class BucketError(StatusError):
    """An error of a bucket or its cache, as opposed to an error of the model."""


class ModelBucket:
    """The versions below a URI. Not thread-safe: each thread needs its own.

    Args:
        uri: The base path, such as ``s3://models/digits``.
    """

    def __init__(self, uri: str) -> None:
        self.uri = normalise(uri)
        self._opened: tuple[Any, str] | None = None

    def endpoint(self) -> str:
        """Return the address of the bucket's server; sends no request to it.

        Raises:
            BucketError: The URI's scheme is unknown, or its package is missing.
        """
        with _translated("open", self.uri):
            return endpoint(self.uri)

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
            self._opened = open_filesystem(self.uri)
        return self._opened


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
    return bool(names & _MODELS) and expected <= names and is_sharded


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

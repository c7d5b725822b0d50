"""Download a version from a bucket into the cache: resumable and verified."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from timonel.errors import InputError
from timonel.models.schema import KEPT_REFERENCE, VERSION_FILE
from timonel.serving.manager.buckets.listing import BucketError, ModelBucket
from timonel.serving.status import TRANSIENT, Code, StatusError
from timonel.storage import digest_tree
from timonel.storage.atomic import write_json
from timonel.storage.blobs import Blob, Checksums, fingerprint
from timonel.storage.content_cache import (
    CONTENT,
    PROGRESS,
    CacheError,
    ContentCache,
    FolderLease,
    cache_error,
)

_LOG = logging.getLogger(__name__)
_BACKOFF_S = (0.5, 1.0, 2.0)
_BLOCK_BYTES = 1 << 20
_ATTEMPTS = 3
_OTHER_SERVER_S = 0.2
_EXTRA = "assets.extra"

Wait = Callable[[float], bool]
"""Wait for some seconds; return True, at once, when the source is closed."""


def fetch_version(
    bucket: ModelBucket,
    cache: ContentCache,
    number: int,
    name: str,
    blobs: Sequence[Blob] | None,
    mark: str,
    wait: Wait,
) -> FolderLease:
    """Return a version's folder in the cache, verified; download it if needed.

    Args:
        bucket: Where the version is.
        cache: Where it is kept.
        number: Its number.
        name: Its folder in the bucket.
        blobs: Its objects; None if the bucket could not be listed.
        mark: The fingerprint of its objects.
        wait: Waits between attempts.

    Raises:
        StatusError: It cannot be downloaded.
        CacheError: It cannot be kept.
    """
    key = str(number)
    attempts = 0
    while not wait(0):
        lease = cache.lease(bucket.uri, key, mark)
        if lease is not None:
            return lease
        if blobs is None:
            raise BucketError(
                Code.UNAVAILABLE,
                f"Version {number} of {bucket.uri} is not in the cache, and the bucket cannot be "
                "reached.",
            )
        if attempts == _ATTEMPTS:
            raise BucketError(
                Code.DATA_LOSS, f"The cache in {cache.root} does not keep downloaded versions."
            )
        with cache.partial(bucket.uri, key) as folder:
            # Another server may have finished it just before.
            if folder is not None and not cache.has(bucket.uri, key, mark):
                attempts += 1
                download = Download(bucket, name, blobs, folder, wait)
                cache.make_room(download.left_bytes, folder)
                sums = download.run()
                _check_digest(folder, f"{bucket.uri}/{name}")
                cache.adopt(folder, bucket.uri, key, mark, sums)
                continue
        # Another server downloads it, or is about to release it.
        wait(_OTHER_SERVER_S)
    raise _cancelled()


def _check_digest(folder: Path, place: str) -> None:
    """Reject a version that differs from what timonel published.

    Versions of other tools have no digest. Files that were added to ``assets.extra`` later, such as
    warm-up requests, are ignored.
    """
    content = folder / CONTENT
    try:
        digest = json.loads((content / VERSION_FILE).read_bytes()).get("digest")
    except (OSError, ValueError, AttributeError):
        return
    if digest is None or digest == digest_tree(content, exclude={VERSION_FILE, KEPT_REFERENCE}):
        return
    extra = {path.relative_to(content).as_posix() for path in _files(content / _EXTRA)}
    if digest == digest_tree(content, exclude=extra):
        return
    shutil.rmtree(folder, ignore_errors=True)
    raise BucketError(
        Code.DATA_LOSS,
        f"{place} does not have its published digest: it is still incomplete, or was changed.",
    )


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


@dataclass
class _Part:
    """Progress of a file; it is complete once its checksum is known."""

    mark: str
    size: int
    crc32c: int | None = None


class Download:
    """Download of one version into a folder. Not thread-safe.

    An interrupted download can be continued by another one into the same folder: objects replaced
    since then are downloaded anew, others from where they ended.

    Args:
        bucket: The bucket.
        name: The version's folder there.
        blobs: Its objects, as listed.
        folder: The target: files go to `CONTENT`, progress to `PROGRESS`.
        wait: Waits between attempts.
    """

    def __init__(
        self, bucket: ModelBucket, name: str, blobs: Sequence[Blob], folder: Path, wait: Wait
    ) -> None:
        self._bucket = bucket
        self._name = name
        self._place = f"{bucket.uri}/{name}"
        self._blobs = blobs
        self._folder = folder
        self._wait = wait
        self._parts = _read_progress(folder / PROGRESS)

    @property
    def left_bytes(self) -> int:
        """Bytes still to download."""
        return sum(
            blob.size - min(blob.size, self._present(blob))
            for blob in self._blobs
            if not self._is_done(blob)
        )

    def run(self) -> dict[str, int]:
        """Download missing data, and return each file's CRC32C.

        Raises:
            BucketError: An object cannot be read, was replaced meanwhile, or does not match the
                bucket's checksum.
            CacheError: The disk is full.
            StatusError: The source was closed.
        """
        with _disk_errors(self._folder):
            self._remove_others()
            for blob in self._blobs:
                if not self._is_done(blob):
                    self._fetch(blob)
        # Objects that are complete one by one may still belong to two uploads.
        if fingerprint(self._bucket.blobs(self._name)) != fingerprint(self._blobs):
            raise BucketError(Code.ABORTED, f"{self._place} changed during its download.")
        return {name: part.crc32c or 0 for name, part in self._parts.items()}

    def _path(self, blob: Blob) -> Path:
        return self._folder / CONTENT / blob.name

    def _present(self, blob: Blob) -> int:
        part = self._parts.get(blob.name)
        if part is None or (part.mark, part.size) != (blob.revision, blob.size):
            return 0
        try:
            return self._path(blob).stat().st_size
        except OSError:
            return 0

    def _is_done(self, blob: Blob) -> bool:
        part = self._parts.get(blob.name)
        return (
            part is not None
            and part.crc32c is not None
            and self._path(blob).is_file()
            and self._present(blob) == blob.size
        )

    def _remove_others(self) -> None:
        names = {blob.name for blob in self._blobs}
        content = self._folder / CONTENT
        for path in sorted(content.rglob("*"), reverse=True):
            if path.relative_to(content).as_posix() not in names and not path.is_dir():
                path.unlink()
        self._parts = {name: part for name, part in self._parts.items() if name in names}

    def _fetch(self, blob: Blob) -> None:
        path = self._path(blob)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._present(blob):
            path.unlink(missing_ok=True)
        self._save(blob, None)
        sums = self._append(blob, path)
        if not sums.match(blob):
            # The damage may be in the part from before an interruption.
            path.unlink()
            again = self._append(blob, path)
            if not again.match(blob):
                self._check_mismatch(blob, repeated=sums.md5 == again.md5)
            sums = again
        self._save(blob, sums.crc32c)

    def _check_mismatch(self, blob: Blob, *, repeated: bool) -> None:
        """Accept or reject a file that does not match the bucket's checksum twice."""
        place = f"{self._place}/{blob.name}"
        if blob.crc32c is None and repeated:
            # For encrypted objects, and for all in some stores, the ETag is not an MD5.
            _LOG.info("Two downloads of %s are equal; its ETag is not an MD5.", place)
            return
        self._path(blob).unlink()
        raise BucketError(Code.ABORTED, f"{place} does not match its checksum in the bucket.")

    def _append(self, blob: Blob, path: Path) -> Checksums:
        with path.open("a+b") as file:
            if file.tell() > blob.size:
                file.truncate(0)
            file.seek(0)
            sums = Checksums()
            while block := file.read(_BLOCK_BYTES):
                sums.add(block)
            while sums.size < blob.size:
                for chunk in self._read(blob, sums.size):
                    file.write(chunk)
                    sums.add(chunk)
            file.flush()
            os.fsync(file.fileno())
        return sums

    def _read(self, blob: Blob, start: int) -> list[bytes]:
        for backoff_s in (*_BACKOFF_S, None):
            if self._wait(0):
                break
            try:
                return self._bucket.read(self._name, blob, start)
            except BucketError as error:
                if backoff_s is None or error.code not in TRANSIENT:
                    raise
                _LOG.info("%s; retrying in %g s", error.message, backoff_s)
                if self._wait(backoff_s):
                    break
        raise _cancelled()

    def _save(self, blob: Blob, crc32c: int | None) -> None:
        self._parts[blob.name] = _Part(blob.revision, blob.size, crc32c)
        body = {name: asdict(part) for name, part in self._parts.items()}
        write_json(self._folder / PROGRESS, body)


def _cancelled() -> StatusError:
    return StatusError(Code.CANCELLED, "The download was cancelled.")


def _read_progress(path: Path) -> dict[str, _Part]:
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
        return {str(name): _Part(**part) for name, part in body.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        shutil.rmtree(path.parent / CONTENT, ignore_errors=True)
        return {}


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cache_error(folder, error) from error
    except InputError as error:
        raise CacheError(error.message) from error

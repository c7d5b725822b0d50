"""Downloading one version into a folder: resumed where it was cut off, and verified."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from timonel.errors import InputError
from timonel.serving.manager.buckets.listing import Blob, fingerprint
from timonel.serving.manager.buckets.store import Bucket, BucketError
from timonel.serving.status import TRANSIENT, Code, StatusError
from timonel.storage.atomic import write_json

_LOG = logging.getLogger(__name__)
_PAUSES_S = (0.5, 1.0, 2.0)
_BLOCK_BYTES = 1 << 20
PROGRESS = "progress.json"
CONTENT = "content"

Wait = Callable[[float], bool]
"""Waits for some seconds; true, at once, when what is under way shall end."""


@dataclass
class _Part:
    """A file that is there in part, or whole once its checksum is known."""

    mark: str
    size: int
    crc32c: int | None = None


class Download:
    """One version on its way into a folder. Not thread-safe.

    A download that broke off is continued by another one into the same folder: objects that were
    replaced since are fetched anew, others from where they ended.

    Args:
        bucket: Where the version is.
        name: The version's folder there.
        blobs: Its objects, as they were listed.
        folder: Where it goes, into `CONTENT`; what is done is kept in `PROGRESS`.
        wait: Waits between attempts.
    """

    def __init__(
        self, bucket: Bucket, name: str, blobs: Sequence[Blob], folder: Path, wait: Wait
    ) -> None:
        self._bucket = bucket
        self._name = name
        self._blobs = blobs
        self._folder = folder
        self._wait = wait
        self._parts = _read_progress(folder / PROGRESS)

    @property
    def left_bytes(self) -> int:
        """How much is still to be fetched."""
        return sum(
            blob.size - min(blob.size, self._present(blob))
            for blob in self._blobs
            if not self._is_done(blob)
        )

    def run(self) -> dict[str, int]:
        """Fetch all that is not there yet, and return each file's CRC32C.

        Raises:
            BucketError: The bucket did not give it; or an object was replaced meanwhile; or what
                came does not have the checksum that the bucket has of it.
            StatusError: There is no room for it, or the server is stopping.
        """
        with _on_disk(self._folder):
            self._drop_others()
            for blob in self._blobs:
                if not self._is_done(blob):
                    self._fetch(blob)
        # What is whole object by object may still be of two versions, were some of them replaced.
        if fingerprint(self._bucket.blobs(self._name)) != fingerprint(self._blobs):
            raise BucketError(
                Code.ABORTED,
                f"{self._bucket.uri}/{self._name} was changed while it was downloaded",
            )
        return {name: part.crc32c or 0 for name, part in self._parts.items()}

    def _path(self, blob: Blob) -> Path:
        return self._folder / CONTENT / blob.name

    def _present(self, blob: Blob) -> int:
        part = self._parts.get(blob.name)
        if part is None or (part.mark, part.size) != (blob.mark, blob.size):
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

    def _drop_others(self) -> None:
        wanted = {blob.name for blob in self._blobs}
        content = self._folder / CONTENT
        for path in sorted(content.rglob("*"), reverse=True):
            if path.relative_to(content).as_posix() not in wanted and not path.is_dir():
                path.unlink()
        self._parts = {name: part for name, part in self._parts.items() if name in wanted}

    def _fetch(self, blob: Blob) -> None:
        path = self._path(blob)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._present(blob):
            path.unlink(missing_ok=True)
        self._note(blob, None)
        sums = self._append(blob, path)
        if not sums.agree_with(blob):
            # What is wrong may be what was there before the cut.
            path.unlink()
            again = self._append(blob, path)
            if not again.agree_with(blob):
                self._doubt(blob, same=sums.md5 == again.md5)
            sums = again
        self._note(blob, sums.crc32c)

    def _doubt(self, blob: Blob, *, same: bool) -> None:
        """Decide about a file that came twice and does not have the digest the bucket tells."""
        place = f"{self._bucket.uri}/{self._name}/{blob.name}"
        if blob.crc32c is None and same:
            # Of encrypted objects, and in some stores of all, the tag is no digest.
            _LOG.info("%s came twice the same; its tag is no MD5 of it", place)
            return
        self._path(blob).unlink()
        raise BucketError(
            Code.ABORTED, f"{place} does not have the checksum that its bucket has of it"
        )

    def _append(self, blob: Blob, path: Path) -> _Sums:
        with path.open("a+b") as file:
            if file.tell() > blob.size:
                file.truncate(0)
            file.seek(0)
            sums = _Sums()
            while block := file.read(_BLOCK_BYTES):
                sums.add(block)
            while sums.size < blob.size:
                for piece in self._read(blob, sums.size):
                    file.write(piece)
                    sums.add(piece)
            file.flush()
            os.fsync(file.fileno())
        return sums

    def _read(self, blob: Blob, start: int) -> list[bytes]:
        for pause in (*_PAUSES_S, None):
            if self._wait(0):
                break
            try:
                return self._bucket.read(self._name, blob, start)
            except BucketError as error:
                if pause is None or error.code not in TRANSIENT:
                    raise
                _LOG.info("%s; trying again in %g s", error.message, pause)
                if self._wait(pause):
                    break
        raise StatusError(Code.CANCELLED, "the download is not wanted any more")

    def _note(self, blob: Blob, crc32c: int | None) -> None:
        self._parts[blob.name] = _Part(blob.mark, blob.size, crc32c)
        body = {name: asdict(part) for name, part in self._parts.items()}
        write_json(self._folder / PROGRESS, body)


class _Sums:
    """The digests of a file, piece by piece."""

    def __init__(self) -> None:
        self.size = 0
        self.crc32c = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        self.crc32c = google_crc32c.extend(self.crc32c, piece)
        self._md5.update(piece)

    def agree_with(self, blob: Blob) -> bool:
        return (
            self.size == blob.size
            and blob.crc32c in {None, self.crc32c}
            and blob.md5 in {None, self.md5}
        )


def crc32c_of(path: Path) -> int:
    """Return the CRC32C of a file.

    Raises:
        OSError: It cannot be read.
    """
    sum_ = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            sum_ = google_crc32c.extend(sum_, block)
    return sum_


def _read_progress(path: Path) -> dict[str, _Part]:
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
        return {str(name): _Part(**part) for name, part in body.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        # Begun afresh.
        shutil.rmtree(path.parent / CONTENT, ignore_errors=True)
        return {}


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise no_room(folder, error) from error
    except InputError as error:
        raise StatusError(Code.RESOURCE_EXHAUSTED, error.message) from error


def no_room(folder: Path, error: OSError) -> StatusError:
    """Return the error of a cache that cannot be written."""
    return StatusError(
        Code.RESOURCE_EXHAUSTED,
        f"cannot write to the cache in {folder}: {error.strerror or error}",
    )

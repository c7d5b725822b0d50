"""Objects below a URI, over fsspec: S3, Google Cloud Storage, memory and local folders.

Requests are repeated while the server is away, for a bounded time.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import posixpath
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from timonel.errors import AlreadyExistsError, CorruptError
from timonel.storage.atomic import ASIDE_PREFIX, aside_name, create_bytes, unwritable, write_bytes
from timonel.storage.blobs import Blob, blob_from, blobs_from, checksums_of, is_copy, is_file_name
from timonel.storage.bucket_errors import UnavailableError, translated
from timonel.storage.filesystems import open_filesystem
from timonel.storage.uris import normalise

PATIENCE_S = 40.0
"""Seconds for which a request is repeated while the server is away."""
_PARALLEL = 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_SILENT_S = 5.0
# Of a local disk, while an object is downloaded; no server sends them.
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class ObjectStore:
    """Reads and writes the objects below a URI. Thread-safe.

    Names are relative to the URI, with slashes.

    Args:
        uri: The folder, such as ``s3://bucket/team``.
        patience_s: Seconds for which a request is repeated while the server is away.
    """

    def __init__(self, uri: str, *, patience_s: float = PATIENCE_S) -> None:
        self.uri = normalise(uri)
        self._patience_s = patience_s

    def find(self, folder: str = "") -> dict[str, Blob]:
        """Return the objects below a folder by name; empty if there are none."""

        def blobs() -> dict[str, Blob]:
            fs, place = self._open(folder)
            fs.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                found = blobs_from(fs.find(place, detail=True), place)
                return {posixpath.join(folder, blob.name): blob for blob in found}
            return {}

        return self._attempt("list", folder, blobs)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, sorted."""
        return self.children(folder)[0]

    def children(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Return the names of folders, and of objects, directly in a folder, sorted."""

        def found() -> tuple[list[str], list[str]]:
            fs, place = self._open(folder)
            fs.invalidate_cache()
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                names: dict[str, list[str]] = {"directory": [], "file": []}
                for each in fs.ls(place, detail=True):
                    name = posixpath.basename(each["name"].rstrip("/"))
                    # A folder's own marker, and a file that is listed as its own content.
                    if is_file_name(name) and each["name"].rstrip("/") != place.rstrip("/"):
                        names[each["type"]].append(name)
                return sorted(names["directory"]), sorted(names["file"])
            return [], []

        return self._attempt("list", folder, found)

    def stat(self, name: str = "") -> Blob | None:
        """Return an object as listed; None for a folder."""

        def found() -> Blob | None:
            fs, place = self._open(name)
            info = fs.info(place)
            return None if info["type"] == "directory" else blob_from(name, info)

        return self._attempt("read", name, found)

    def glob(self, pattern: str) -> list[str]:
        """Return the names of the objects that match a pattern, sorted."""

        def found() -> list[str]:
            fs, place = self._open("")
            fs.invalidate_cache()
            places = fs.glob(posixpath.join(place, pattern), detail=True)
            return sorted(
                posixpath.relpath(each, place)
                for each, info in places.items()
                if info["type"] == "file"
            )

        return self._attempt("list", pattern, found)

    def read(self, name: str) -> bytes:
        """Return an object's content."""

        def content() -> bytes:
            fs, place = self._open(name)
            # Otherwise s3fs asks for the size first.
            options = {"max_concurrency": 1} if self.uri.startswith("s3") else {}
            return bytes(fs.cat_file(place, **options))

        return self._attempt("read", name, content)

    def write(self, name: str, content: bytes) -> None:
        """Write an object, or replace it."""

        def put() -> None:
            fs, place = self._open(name)
            if _is_local(fs):
                write_bytes(Path(place), content)
            else:
                fs.pipe_file(place, content)

        self._attempt("write", name, put)

    def create(self, name: str, content: bytes) -> None:
        """Write an object unless it exists, by a conditional request.

        Of several writers, one succeeds. An existing object with the same content counts as
        success: a repeated request cannot tell its own earlier write from another's.
        """

        def put() -> None:
            fs, place = self._open(name)
            if _is_local(fs):
                create_bytes(Path(place), content)
            else:
                fs.pipe_file(place, content, mode="create")

        try:
            self._attempt("write", name, put)
        except AlreadyExistsError:
            if self.read(name) != content:
                raise

    def upload(self, files: Mapping[str, Path]) -> None:
        """Copy local files to objects, several at a time."""
        self._parallel(self._upload, files.items())

    def download(self, files: Mapping[str, Path], blobs: Mapping[str, Blob]) -> None:
        """Copy objects to local files, several at a time; each appears complete.

        Args:
            files: Paths by name.
            blobs: The objects as listed, by name.
        """
        self._parallel(lambda name: self._download(name, files[name], blobs[name]), files)

    def is_same(self, name: str, path: Path, blob: Blob) -> bool:
        """Return whether a file has an object's content; reads it if no checksum can tell."""
        found = is_copy(path, blob)
        return self.read(name) == path.read_bytes() if found is None else found

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, in order; missing ones are ignored."""
        for name in names:
            self._attempt("delete", name, lambda name=name: self._delete(name))  # type: ignore[misc]

    def _delete(self, name: str) -> None:
        fs, place = self._open(name)
        with contextlib.suppress(FileNotFoundError):
            fs.rm_file(place)

    def _upload(self, item: tuple[str, Path]) -> None:
        name, path = item

        def put() -> None:
            fs, place = self._open(name)
            if _is_local(fs):
                Path(place).parent.mkdir(parents=True, exist_ok=True)
                aside = Path(place).with_name(aside_name(path.name))
                shutil.copyfile(path, aside)
                aside.replace(place)
            else:
                fs.put_file(str(path), place)

        self._attempt("write", name, put)

    def _download(self, name: str, path: Path, blob: Blob) -> None:
        aside = path.with_name(aside_name(path.name))

        def get() -> None:
            fs, place = self._open(name)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                aside.unlink(missing_ok=True)
            except OSError as error:
                raise unwritable(path, error) from error
            try:
                fs.get_file(place, str(aside))
            except OSError as error:
                if error.errno in _DISK:
                    raise unwritable(path, error) from error
                raise

        try:
            self._attempt("read", name, get)
            first = checksums_of(aside)
            if not first.match(blob):
                self._attempt("read", name, get)
            again = checksums_of(aside)
            # For encrypted objects, and for all in some stores, the ETag is not an MD5.
            is_known = blob.crc32c is not None or again.size != blob.size
            if not again.match(blob) and (is_known or again.md5 != first.md5):
                raise CorruptError(
                    f"{posixpath.join(self.uri, name)} does not match its checksum in the bucket",
                    hint="it was replaced meanwhile, or damaged on the way: try again",
                )
            aside.replace(path)
        finally:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)

    def _parallel(self, work: Callable[[Any], None], items: Iterable[Any]) -> None:
        left = iter(list(items))
        errors: list[BaseException] = []

        def run() -> None:
            for item in left:
                if errors:
                    return
                try:
                    work(item)
                except BaseException as error:  # noqa: BLE001 - raised below
                    errors.append(error)

        # Daemons: a server that hangs must not keep the process from exiting.
        threads = [threading.Thread(target=run, daemon=True) for _ in range(_PARALLEL)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _open(self, name: str) -> tuple[Any, str]:
        fs, root = open_filesystem(self.uri)
        return fs, posixpath.join(root, name) if name else root

    def _attempt(self, verb: str, name: str, work: Callable[[], _Result]) -> _Result:
        """Do ``work``, again while the server is away."""
        place = posixpath.join(self.uri, name) if name else self.uri
        begun, pause_s, is_silent = time.monotonic(), _FIRST_PAUSE_S, True
        while True:
            try:
                with translated(verb, place):
                    return work()
            except UnavailableError as error:
                took_s = time.monotonic() - begun
                if took_s + pause_s > self._patience_s:
                    raise
                if is_silent and took_s > _SILENT_S:
                    is_silent = False
                    _logger.warning("%s; trying for %.0f s", error.message, self._patience_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def local_files(folder: Path) -> list[str]:
    """Return the relative names of all files in a folder, without those being written."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(ASIDE_PREFIX) for part in path.relative_to(folder).parts)
    )


def _is_local(fs: Any) -> bool:
    return "file" in (fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,))

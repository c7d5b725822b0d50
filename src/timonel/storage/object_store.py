"""Objects below a URI, over fsspec: S3, Google Cloud Storage, memory and local folders.

Errors of the file systems become timonel errors here and nowhere else. Requests are repeated while
the server is away, for a bounded time.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from timonel.errors import AlreadyExistsError, CorruptError, InputError, NotFoundError, TimonelError
from timonel.storage.atomic import ASIDE_PREFIX, aside_name, create_bytes, unwritable, write_bytes
from timonel.storage.blobs import Blob, blobs_from, checksums_of
from timonel.storage.uris import filesystem, normalise

PATIENCE_S = 40.0
"""Seconds for which a request is repeated while the server is away."""
_PARALLEL = 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
# Without these, a server that accepts connections and never answers blocks for minutes.
_S3 = {
    "use_listings_cache": False,
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 1}},
}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {"s3": _S3, "s3a": _S3}
_GCS = frozenset({"gs", "gcs"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_EXISTS = frozenset({"PreconditionFailed", "412"})
_AWAY = frozenset({errno.EBUSY, errno.EREMOTEIO, errno.EIO, errno.ETIMEDOUT})
_Result = TypeVar("_Result")


class UnavailableError(InputError):
    """The server of a bucket does not answer."""


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
        """Return the objects below a folder by name; empty if there are none.

        Raises:
            InputError: They cannot be listed.
        """

        def blobs() -> dict[str, Blob]:
            fs, root = open_filesystem(self.uri)
            place = posixpath.join(root, folder) if folder else root
            fs.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                found = blobs_from(fs.find(place, detail=True), place)
                return {posixpath.join(folder, blob.name): blob for blob in found}
            return {}

        return self._attempt("list", folder, blobs)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, sorted.

        Raises:
            InputError: They cannot be listed.
        """

        def found() -> list[str]:
            fs, root = open_filesystem(self.uri)
            with contextlib.suppress(FileNotFoundError):
                entries = fs.ls(posixpath.join(root, folder), detail=True)
                places = (each["name"] for each in entries if each["type"] == "directory")
                return sorted(posixpath.basename(place.rstrip("/")) for place in places)
            return []

        return self._attempt("list", folder, found)

    def read(self, name: str) -> bytes:
        """Return an object's content.

        Raises:
            NotFoundError: There is no such object.
            InputError: It cannot be read.
        """

        def content() -> bytes:
            fs, root = open_filesystem(self.uri)
            # Otherwise s3fs asks for the size first.
            options = {"max_concurrency": 1} if self.uri.startswith("s3") else {}
            return bytes(fs.cat_file(posixpath.join(root, name), **options))

        return self._attempt("read", name, content)

    def write(self, name: str, content: bytes) -> None:
        """Write an object, or replace it.

        Raises:
            InputError: It cannot be written.
        """

        def put() -> None:
            fs, root = open_filesystem(self.uri)
            place = posixpath.join(root, name)
            if _is_local(fs):
                write_bytes(Path(place), content)
            else:
                fs.pipe_file(place, content)

        self._attempt("write", name, put)

    def create(self, name: str, content: bytes) -> None:
        """Write an object unless it exists, by a conditional request.

        Of several writers, one succeeds. An existing object with the same content counts as
        success: a repeated request cannot tell its own earlier write from another's.

        Raises:
            AlreadyExistsError: The object exists with other content.
            InputError: It cannot be written.
        """

        def put() -> None:
            fs, root = open_filesystem(self.uri)
            place = posixpath.join(root, name)
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
        """Copy local files to objects, several at a time.

        Raises:
            InputError: One cannot be written.
        """
        self._parallel(self._upload, files.items())

    def download(self, files: Mapping[str, Path], blobs: Mapping[str, Blob]) -> None:
        """Copy objects to local files, several at a time; each appears complete.

        Args:
            files: Paths by name.
            blobs: The objects as listed, by name.

        Raises:
            CorruptError: One does not match its size or checksum in the bucket.
            InputError: One cannot be read or written.
        """
        self._parallel(lambda name: self._download(name, files[name], blobs[name]), files)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, in order; missing ones are ignored.

        Raises:
            InputError: One cannot be deleted.
        """
        for name in names:
            self._attempt("delete", name, lambda name=name: self._delete(name))  # type: ignore[misc]

    def _delete(self, name: str) -> None:
        fs, root = open_filesystem(self.uri)
        with contextlib.suppress(FileNotFoundError):
            fs.rm_file(posixpath.join(root, name))

    def _upload(self, item: tuple[str, Path]) -> None:
        name, path = item

        def put() -> None:
            fs, root = open_filesystem(self.uri)
            place = posixpath.join(root, name)
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
            fs, root = open_filesystem(self.uri)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                aside.unlink(missing_ok=True)
            except OSError as error:
                raise unwritable(path, error) from error
            fs.get_file(posixpath.join(root, name), str(aside))

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
        with ThreadPoolExecutor(_PARALLEL) as pool:
            for _ in pool.map(work, items):
                pass

    def _attempt(self, verb: str, name: str, work: Callable[[], _Result]) -> _Result:
        """Do ``work``, again while the server is away."""
        place = posixpath.join(self.uri, name) if name else self.uri
        deadline, pause_s = time.monotonic() + self._patience_s, _FIRST_PAUSE_S
        while True:
            try:
                with translated(verb, place):
                    return work()
            except UnavailableError:
                if time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def open_filesystem(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, with timeouts, and the path inside it.

    Raises:
        MissingExtraError: The package of the URI's scheme is not installed.
        SpecError: The scheme is unknown.
    """
    scheme = uri.partition("://")[0]
    options = _OPTIONS.get(scheme, {"use_listings_cache": False} if "://" in uri else {})
    fs, root = filesystem(uri, **options)
    if scheme in _OPTIONS:
        fs.retries = 1  # callers repeat requests, for a bounded time
    if scheme in _GCS:
        # fsspec's own choice asks over gRPC for the bucket's kind. Emulators and many firewalls do
        # not offer that second service, and neither reading nor writing needs the answer.
        from gcsfs.core import GCSFileSystem  # noqa: PLC0415 - an extra

        fs = GCSFileSystem(**options)
    return fs, root


def forget_connections() -> None:
    """Drop open file systems, so that the next request reads the credentials again."""
    import fsspec  # noqa: PLC0415 - costs 40 ms, and most commands need no bucket

    for scheme in ("s3", "gs"):
        with contextlib.suppress(ImportError, ValueError):
            fsspec.get_filesystem_class(scheme).clear_instance_cache()


@contextlib.contextmanager
def translated(verb: str, place: str) -> Iterator[None]:
    """Translate exceptions of file systems to timonel errors.

    Args:
        verb: What was tried: ``read``, ``write``, ...
        place: The URI, for messages.

    Raises:
        NotFoundError: Nothing is there.
        AlreadyExistsError: A conditional write found an object.
        UnavailableError: The server does not answer, or asks to try later.
        InputError: The request was refused, as for expired credentials.
    """
    try:
        yield
    except TimonelError:
        raise
    except Exception as error:  # each file system raises its own vendor's classes
        raise _explained(error, verb, place) from error


def local_files(folder: Path) -> list[str]:
    """Return the relative names of all files in a folder, without those being written."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(ASIDE_PREFIX) for part in path.relative_to(folder).parts)
    )


def _explained(error: Exception, verb: str, place: str) -> TimonelError:
    code, name = _code(error), type(error).__name__
    reason = " ".join(str(error).split()) or name
    if code in _EXPIRED or name == "RefreshError":
        return InputError(
            f"cannot {verb} {place}: the credentials have expired",
            hint="renew them, and repeat the command",
        )
    if isinstance(error, FileExistsError) or code in _EXISTS:
        return AlreadyExistsError(f"{place} already exists", hint="choose another name")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"cannot {verb} {place}: not found: {reason}")
    if isinstance(error, PermissionError) or "Credentials" in name:
        return InputError(
            f"cannot {verb} {place}: access denied: {reason}",
            hint="check your credentials and the bucket's permissions",
        )
    if _is_away(error, code):
        return UnavailableError(
            f"cannot {verb} {place}: the server does not answer ({name}: {reason})",
            hint="check the network and the server, and repeat the command",
        )
    return InputError(
        f"cannot {verb} {place}: {name}: {reason}",
        hint="check the URI, your credentials and the network",
    )


def _code(error: BaseException) -> str:
    """Return the error code that a server sent, or an empty text."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, Mapping):
            return str(response.get("Error", {}).get("Code", ""))
        if isinstance(getattr(seen, "code", None), int | str):
            return str(seen.code)  # type: ignore[attr-defined] # gcsfs' HttpError
        seen = seen.__cause__
    return ""


def _is_away(error: BaseException, code: str) -> bool:
    """Return whether a request may succeed later, unchanged."""
    if code.isdigit() and (int(code) >= 500 or int(code) in {408, 429}):
        return True
    if code in {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout"}:
        return True
    if code in {"ConditionalRequestConflict", "409"}:  # another writer's request is in progress
        return True
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _AWAY:
        return True
    module = type(error).__module__.partition(".")[0]
    return module in {"botocore", "aiobotocore", "aiohttp"} and _is_of_network(error)


def _is_of_network(error: BaseException) -> bool:
    words = ("Connect", "Timeout", "Connection", "HTTPClientError", "Payload", "Disconnected")
    names = (kind.__name__ for kind in type(error).__mro__)
    return any(word in name for name in names for word in words)


def _is_local(fs: Any) -> bool:
    return "file" in (fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,))

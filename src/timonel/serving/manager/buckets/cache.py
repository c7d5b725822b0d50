"""Cache of versions from buckets: verified, limited in size, shared between servers.

    <root>/<name>-<hash of the URI>/
      listing.json               the versions of the last successful listing
      <number>-<fingerprint>/    a version: appears complete, by a rename
        entry.json               its origin, and each file's size and CRC32C
        <name>/<number>/         the version as a model server expects it
      part-<number>/             an unfinished or interrupted download

Users of a folder hold a lock on it, which the kernel releases when their process ends. Any process
that needs room may remove unlocked folders. Needs a local file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from timonel.errors import TimonelError
from timonel.serving.manager.buckets.listing import BucketError
from timonel.serving.manager.sources import FolderLease
from timonel.serving.settings import LoadSettings
from timonel.serving.status import Code, StatusError
from timonel.storage.atomic import aside_name, sweep, sync_tree
from timonel.storage.documents import read_document, write_document
from timonel.storage.replica import cache_folder
from timonel.storage.uris import local_path, normalise

_LOG = logging.getLogger(__name__)
_ENTRY, _LISTING = "entry.json", "listing.json"
_NAME = re.compile(r"(-?\d+)-([0-9a-f]{32})|part-.*")
_BLOCK_BYTES = 1 << 20
PROGRESS = "progress.json"
CONTENT = "content"


def cache_of(settings: LoadSettings) -> ModelCache:
    """Return a server's cache, by default in the user's cache folder."""
    if settings.model_cache is not None:
        return ModelCache(local_path(settings.model_cache), settings.model_cache_bytes)
    return ModelCache(cache_folder() / "models", settings.model_cache_bytes)


class ModelCache:
    """Store of downloaded versions. Thread-safe, and safe between processes.

    Args:
        root: The folder; created on first use.
        limit_bytes: Size limit. Versions in use are never removed, so they may exceed it.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._folders: dict[str, Path] = {}

    def holds(self, uri: str, path: Path) -> bool:
        """Return whether ``path`` is the cached folder of a version of the model at ``uri``."""
        return len(path.parents) > 2 and path.parents[2] == self._folder(uri)

    def entries(self, uri: str) -> dict[int, str]:
        """Return the fingerprints of a model's cached versions, as last listed."""
        folder = self._folder(uri)
        try:
            body = read_document(folder / _LISTING, "bucket-listing")
            listed = {int(n): str(mark) for n, mark in body["versions"].items()}
        except (TimonelError, KeyError, ValueError, AttributeError):
            return {}
        return {n: mark for n, mark in listed.items() if _entry(folder, n, mark).is_dir()}

    def save_listing(self, uri: str, versions: Mapping[int, str]) -> None:
        """Store the fingerprints of a bucket's versions, for a start without the bucket.

        Raises:
            StatusError: They cannot be written.
        """
        body = {"uri": uri, "versions": {str(n): mark for n, mark in sorted(versions.items())}}
        with _write_errors(self.root):
            write_document(self._folder(uri) / _LISTING, "bucket-listing", body)

    def lease(self, uri: str, number: int, mark: str) -> FolderLease | None:
        """Return a cached version, verified byte by byte; None if not cached.

        A damaged version is removed, so that it is downloaded again.

        Raises:
            StatusError: It is damaged and cannot be removed.
        """
        entry = _entry(self._folder(uri), number, mark)
        lock = _lock_folder(entry, fcntl.LOCK_SH)
        if lock is None:
            return None
        content = _content(entry, uri, number)
        damage = _find_damage(entry, content)
        if damage is None:
            with contextlib.suppress(OSError):
                os.utime(lock)
            return FolderLease(content, lock)
        _LOG.warning("Removing damaged version %d of %s from the cache: %s", number, uri, damage)
        os.close(lock)
        if not _remove(entry):
            raise BucketError(
                Code.RESOURCE_EXHAUSTED, f"Cannot remove the damaged cache entry {entry}."
            )
        return None

    def has(self, uri: str, number: int, mark: str) -> bool:
        """Return whether a version is cached, damaged or not."""
        return _entry(self._folder(uri), number, mark).is_dir()

    @contextlib.contextmanager
    def partial(self, uri: str, number: int) -> Iterator[Path | None]:
        """Yield the folder to download a version into; None while another server uses it.

        Raises:
            StatusError: It cannot be created.
        """
        folder = self._folder(uri) / f"part-{number}"
        with _write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = _lock_folder(folder, fcntl.LOCK_EX)
        try:
            yield None if lock is None else folder
        finally:
            if lock is not None:
                os.close(lock)

    def adopt(
        self, partial: Path, uri: str, number: int, mark: str, sums: Mapping[str, int]
    ) -> None:
        """Turn a finished download into a cached version by a rename.

        Raises:
            StatusError: It cannot be written.
        """
        entry = _entry(self._folder(uri), number, mark)
        content = _content(partial, uri, number)
        with _write_errors(entry):
            content.parent.mkdir(exist_ok=True)
            (partial / CONTENT).rename(content)
            (partial / PROGRESS).unlink(missing_ok=True)
            files = {
                name: {"size": (content / name).stat().st_size, "crc32c": crc32c}
                for name, crc32c in sums.items()
            }
            body = {"uri": uri, "version": number, "fetched_at": time.time(), "files": files}
            write_document(partial / _ENTRY, "model-cache-entry", body)
            sync_tree(partial)
            partial.rename(entry)

    def make_room(self, needed_bytes: int, keep: Path) -> None:
        """Remove unused versions, least recently used first, until there is room.

        Both the size limit and the free disk space count.

        Args:
            needed_bytes: Bytes about to be written.
            keep: A folder that is not removed.

        Raises:
            StatusError: The disk still has no room.
        """
        with self._lock:
            sweep(self.root)
            folders = [p for p in self.root.glob("*/*") if p.is_dir() and _NAME.fullmatch(p.name)]
            unused = sorted((_used_at(path), path) for path in folders if path != keep)
            sizes = {path: _size(path) for _, path in unused}
            total = sum(sizes.values()) + _size(keep) + needed_bytes
            for _, path in unused:
                if total <= self._limit_bytes and self._free_bytes() >= needed_bytes:
                    return
                if _remove_unlocked(path):
                    total -= sizes[path]
                    _LOG.info("Removed %s from the cache to make room.", path)
            if total > self._limit_bytes:
                _LOG.warning(
                    "The cache in %s has %d MiB, more than its limit: all its versions are in use.",
                    self.root,
                    total >> 20,
                )
        if self._free_bytes() < needed_bytes:
            raise BucketError(
                Code.RESOURCE_EXHAUSTED,
                f"The disk of the cache in {self.root} has no room for {needed_bytes} more bytes.",
            )

    def _folder(self, uri: str) -> Path:
        if uri not in self._folders:
            text = normalise(uri)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            self._folders[uri] = self.root / f"{_model_name(text)}-{digest}"
        return self._folders[uri]

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self.root).free


def cache_error(folder: Path, error: OSError) -> StatusError:
    """Return the error for a cache that cannot be written."""
    return StatusError(
        Code.RESOURCE_EXHAUSTED,
        f"Cannot write to the cache in {folder}: {error.strerror or error}",
    )


def _model_name(uri: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", uri.rpartition("/")[2])[:64]


def _entry(folder: Path, number: int, mark: str) -> Path:
    return folder / f"{number}-{mark}"


def _content(entry: Path, uri: str, number: int) -> Path:
    # Below the model's name, because processes and logs show both.
    return entry / _model_name(normalise(uri)) / str(number)


def _lock_folder(folder: Path, kind: int) -> int | None:
    """Return a descriptor that locks a folder; None if missing or locked by another process."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # The folder may have been removed or renamed before it was locked.
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _find_damage(entry: Path, content: Path) -> str | None:
    try:
        files: dict[str, Any] = read_document(entry / _ENTRY, "model-cache-entry")["files"]
        found = {p.relative_to(content).as_posix() for p in content.rglob("*") if p.is_file()}
        if found != files.keys():
            return f"missing or unexpected files {sorted(found ^ files.keys())}"
        for name, stored in files.items():
            path = content / name
            if path.stat().st_size != stored["size"] or _crc32c(path) != stored["crc32c"]:
                return f"{name} has changed"
    except (TimonelError, OSError, KeyError, TypeError, AttributeError) as error:
        return str(error)
    return None


def _crc32c(path: Path) -> int:
    crc32c = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            crc32c = google_crc32c.extend(crc32c, block)
    return crc32c


def _remove_unlocked(folder: Path) -> bool:
    lock = _lock_folder(folder, fcntl.LOCK_EX)
    if lock is None:
        return False
    try:
        return _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> bool:
    """Remove a folder in one step, as far as others see."""
    aside = folder.parent.parent / aside_name(folder.name)
    try:
        folder.rename(aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _used_at(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


@contextlib.contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cache_error(folder, error) from error
    except TimonelError as error:
        raise BucketError(Code.RESOURCE_EXHAUSTED, error.message) from error

"""Cache of folders from buckets: verified, limited in size, shared between processes.

    <root>/<name>-<hash of the URI>/
      listing.json             the entries of the last successful listing
      <key>-<fingerprint>/     an entry: appears complete, by a rename
        entry.json             its origin, and each file's size and CRC32C
        <name>/<key>/          its content
      part-<key>/              an unfinished or interrupted download

An entry is a version of a model, by its number, or a dataset. Users of a folder hold a lock on it,
which the kernel releases when their process ends. Any process that needs room may remove unlocked
folders. Needs a local file system.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from timonel.errors import TimonelError
from timonel.storage.atomic import aside_name, sweep, sync_tree
from timonel.storage.documents import read_document, write_document
from timonel.storage.uris import normalise

_LOG = logging.getLogger(__name__)
_ENTRY, _LISTING = "entry.json", "listing.json"
_NAME = re.compile(r".+-[0-9a-f]{32}|part-.*")
_BLOCK_BYTES = 1 << 20
_DISK_HINT = "free disk space, or set XDG_CACHE_HOME to a folder on another disk"
CONTENT = "content"


class CacheError(TimonelError):
    """A cache cannot be written, or its disk is full."""


class FolderLease:
    """A version's folder, protected from removal until released.

    Args:
        lock: A file descriptor that holds a lock; None for a user's folder, which is never removed.
    """

    def __init__(self, path: Path, lock: int | None = None) -> None:
        self.path = path
        self._lock = lock
        self._on_release: Callable[[], None] = lambda: None

    def on_release(self, callback: Callable[[], None]) -> None:
        """Set a callback for the release."""
        self._on_release = callback

    def release(self) -> None:
        """Allow removal of the folder. Idempotent; not thread-safe."""
        lock, self._lock = self._lock, None
        if lock is not None:
            # In use until now: eviction removes the least recently used folders first.
            with contextlib.suppress(OSError):
                os.utime(lock)
            os.close(lock)
        callback, self._on_release = self._on_release, lambda: None
        callback()


class ContentCache:
    """Store of downloaded folders. Thread-safe, and safe between processes.

    Args:
        root: The folder; created on first use.
        limit_bytes: Size limit. Entries in use are never removed, so they may exceed it.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._folders: dict[str, Path] = {}

    def entries(self, uri: str, endpoint: str) -> dict[str, str]:
        """Return the fingerprints of a URI's cached entries, as last listed.

        Args:
            endpoint: Address of its server. Listings of another one do not count.
        """
        folder = self._folder(uri)
        try:
            body = read_document(folder / _LISTING, "bucket-listing")
            listed = {str(key): str(mark) for key, mark in body["versions"].items()}
            if body["endpoint"] != endpoint:
                return {}
        except (TimonelError, KeyError, ValueError, AttributeError):
            return {}
        return {key: mark for key, mark in listed.items() if _entry(folder, key, mark).is_dir()}

    def save_listing(self, uri: str, endpoint: str, listed: Mapping[str, str]) -> None:
        """Store the fingerprints of a URI's entries, for a start without the bucket."""
        body = {"uri": uri, "endpoint": endpoint, "versions": dict(sorted(listed.items()))}
        with write_errors(self.root):
            write_document(self._folder(uri) / _LISTING, "bucket-listing", body)

    def lease(
        self, uri: str, key: str, mark: str, *, sizes_only: bool = False
    ) -> FolderLease | None:
        """Return a cached entry, verified byte by byte; None if not cached.

        A damaged entry is removed, so that it is downloaded again.

        Args:
            sizes_only: Verify sizes only, for content that its readers verify.
        """
        entry = _entry(self._folder(uri), key, mark)
        lock = _lock_folder(entry, fcntl.LOCK_SH)
        if lock is None:
            return None
        content = _content(entry, uri, key)
        damage = _find_damage(entry, content, sizes_only=sizes_only)
        if damage is None:
            with contextlib.suppress(OSError):
                os.utime(lock)
            return FolderLease(content, lock)
        _LOG.warning("Removing damaged entry %s of %s from the cache: %s", key, uri, damage)
        os.close(lock)
        if not _remove(entry):
            raise CacheError(f"cannot remove the damaged cache entry {entry}")
        return None

    def has(self, uri: str, key: str, mark: str) -> bool:
        """Return whether an entry is cached, damaged or not."""
        return _entry(self._folder(uri), key, mark).is_dir()

    @contextlib.contextmanager
    def partial(self, uri: str, key: str) -> Iterator[Path | None]:
        """Yield the folder to download an entry into; None while another process uses it."""
        folder = self._folder(uri) / f"part-{key}"
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = _lock_folder(folder, fcntl.LOCK_EX)
        try:
            yield None if lock is None else folder
        finally:
            if lock is not None:
                os.close(lock)

    def adopt(self, partial: Path, uri: str, key: str, mark: str) -> None:
        """Turn a finished download into a cached version by a rename."""
        entry = _entry(self._folder(uri), key, mark)
        content = _content(partial, uri, key)
        with write_errors(entry):
            content.parent.mkdir(exist_ok=True)
            (partial / CONTENT).rename(content)
            files = {
                path.relative_to(content).as_posix(): {
                    "size": path.stat().st_size,
                    "crc32c": _crc32c(path),
                }
                for path in content.rglob("*")
                if path.is_file()
            }
            body = {"uri": uri, "version": key, "fetched_at": time.time(), "files": files}
            write_document(partial / _ENTRY, "model-cache-entry", body)
            sync_tree(partial)
            partial.rename(entry)

    def make_room(self, needed_bytes: int, keep: Path) -> None:
        """Remove unused entries, least recently used first, until there is room.

        Both the size limit and the free disk space count.

        Args:
            needed_bytes: Bytes about to be written.
            keep: A folder that is not removed.
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
                    "The cache in %s has %d MiB, more than its limit: all its entries are in use.",
                    self.root,
                    total >> 20,
                )
        if self._free_bytes() < needed_bytes:
            raise CacheError(
                f"the disk of the cache in {self.root} has no room for {needed_bytes} more bytes",
                hint=_DISK_HINT,
            )

    def _folder(self, uri: str) -> Path:
        if uri not in self._folders:
            text = normalise(uri)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            self._folders[uri] = self.root / f"{_folder_name(text)}-{digest}"
        return self._folders[uri]

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self.root).free


def _folder_name(uri: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", uri.rpartition("/")[2])[:64]


def _entry(folder: Path, key: str, mark: str) -> Path:
    return folder / f"{key}-{mark}"


def _content(entry: Path, uri: str, key: str) -> Path:
    # Below a model's name, because processes and logs show both.
    return entry / _folder_name(normalise(uri)) / str(key)


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


def _find_damage(entry: Path, content: Path, *, sizes_only: bool) -> str | None:
    try:
        files: dict[str, Any] = read_document(entry / _ENTRY, "model-cache-entry")["files"]
        found = {p.relative_to(content).as_posix() for p in content.rglob("*") if p.is_file()}
        if found != files.keys():
            return f"missing or unexpected files {sorted(found ^ files.keys())}"
        for name, stored in files.items():
            path = content / name
            is_same = path.stat().st_size == stored["size"]
            if not (is_same and (sizes_only or _crc32c(path) == stored["crc32c"])):
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
def write_errors(folder: Path) -> Iterator[None]:
    """Translate errors of writing to the cache."""
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"cannot write to the cache in {folder}: {error.strerror or error}", hint=_DISK_HINT
        ) from error
    except CacheError:
        raise
    except TimonelError as error:
        raise CacheError(error.message, hint=error.hint) from error

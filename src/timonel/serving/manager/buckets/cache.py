"""The cache of versions from buckets: verified, limited in size, shared between servers.

    <root>/<name>-<hash of the URI>/
      listing.json               the last versions that the bucket told of
      <number>-<fingerprint>/    a version: appears by a rename, whole
        entry.json               where it is from, and each file's size and CRC32C
        <name>/<number>/         the version as a model server sees it
      part-<number>/             one that is being downloaded, or was cut off

Whoever uses a folder holds a lock on it, which the kernel takes away from a process that dies.
What nobody uses may be removed at any time, by whoever needs the room. Needs a local file system.
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

from timonel.errors import TimonelError
from timonel.serving.manager.buckets.download import CONTENT, PROGRESS, crc32c_of, no_room
from timonel.serving.manager.buckets.store import BucketError
from timonel.serving.manager.sources import Held
from timonel.serving.status import Code
from timonel.storage.atomic import aside_name, sweep, sync_tree
from timonel.storage.documents import read_document, write_document
from timonel.storage.uris import normalise

_LOG = logging.getLogger(__name__)
_ENTRY, _LISTING = "entry.json", "listing.json"
_NAME = re.compile(r"(-?\d+)-([0-9a-f]{32})")
_PART = "part-"


class ModelCache:
    """Keeps versions. Thread-safe, and safe between processes.

    Args:
        root: Its folder; made when something is kept.
        limit_bytes: How much unused versions may take together with those in use. Those in use
            are never removed, so they may take more.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._places: dict[str, Path] = {}

    def holds(self, uri: str, path: Path) -> bool:
        """Tell whether ``path`` is where a version of the model at ``uri`` is kept."""
        return len(path.parents) > 2 and path.parents[2] == self._place(uri)

    def entries(self, uri: str) -> dict[int, str]:
        """Return the fingerprints of what is kept of a model, by version, as last listed."""
        place = self._place(uri)
        try:
            body = read_document(place / _LISTING, "bucket-listing")
            listed = {int(n): str(fingerprint) for n, fingerprint in body["versions"].items()}
        except (TimonelError, KeyError, ValueError, AttributeError):
            return {}
        return {n: mark for n, mark in listed.items() if _entry(place, n, mark).is_dir()}

    def remember(self, uri: str, versions: Mapping[int, str]) -> None:
        """Note the versions that a bucket tells of, for a start without the bucket.

        Raises:
            StatusError: It cannot be written.
        """
        body = {"uri": uri, "versions": {str(n): mark for n, mark in sorted(versions.items())}}
        with _writing(self.root):
            write_document(self._place(uri) / _LISTING, "bucket-listing", body)

    def hold(self, uri: str, number: int, fingerprint: str) -> Held | None:
        """Return a version that is kept, verified byte by byte; none if it is not there.

        One that is damaged is removed, so that it is fetched again.

        Raises:
            StatusError: It is damaged and cannot be removed.
        """
        entry = _entry(self._place(uri), number, fingerprint)
        lock = _locked(entry, fcntl.LOCK_SH)
        if lock is None:
            return None
        content = _content(entry, uri, number)
        damage = _damage(entry, content)
        if damage is None:
            with contextlib.suppress(OSError):
                os.utime(lock)
            return Held(content, lock)
        _LOG.warning("the cached version %d of %s is damaged and removed: %s", number, uri, damage)
        os.close(lock)
        if not _remove(entry):
            raise BucketError(
                Code.RESOURCE_EXHAUSTED, f"the damaged cache entry {entry} cannot be removed"
            )
        return None

    def has(self, uri: str, number: int, fingerprint: str) -> bool:
        """Tell whether a version is there, sound or not, and whoever uses it."""
        return _entry(self._place(uri), number, fingerprint).is_dir()

    @contextlib.contextmanager
    def part(self, uri: str, number: int) -> Iterator[Path | None]:
        """Give the folder to download a version into; none while another server has it.

        Raises:
            StatusError: It cannot be made.
        """
        folder = self._place(uri) / f"{_PART}{number}"
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = _locked(folder, fcntl.LOCK_EX)
        try:
            yield None if lock is None else folder
        finally:
            if lock is not None:
                os.close(lock)

    def adopt(
        self, part: Path, uri: str, number: int, fingerprint: str, sums: Mapping[str, int]
    ) -> None:
        """Make a version of what was downloaded into ``part``, which ends to be there.

        Raises:
            StatusError: It cannot be written.
        """
        entry = _entry(self._place(uri), number, fingerprint)
        content = _content(part, uri, number)
        with _writing(entry):
            content.parent.mkdir(exist_ok=True)
            (part / CONTENT).rename(content)
            (part / PROGRESS).unlink(missing_ok=True)
            files = {
                name: {"size": (content / name).stat().st_size, "crc32c": sum_}
                for name, sum_ in sums.items()
            }
            body = {"uri": uri, "version": number, "fetched_at": time.time(), "files": files}
            write_document(part / _ENTRY, "model-cache-entry", body)
            sync_tree(part)
            part.rename(entry)

    def make_room(self, needed_bytes: int, keep: Path) -> None:
        """Remove versions that nobody uses, least recently used first, until there is room.

        There is room when everything takes no more than the limit with ``needed_bytes`` more, and
        the disk has as much.

        Args:
            needed_bytes: What is about to be written.
            keep: What is not removed.

        Raises:
            StatusError: The disk has no room even so.
        """
        with self._lock:
            sweep(self.root)
            found = sorted((_used(path), path) for path in self._folders() if path != keep)
            sizes = {path: _size(path) for _, path in found}
            total = sum(sizes.values()) + _size(keep) + needed_bytes
            for _, path in found:
                if total <= self._limit_bytes and self._free() >= needed_bytes:
                    return
                if _remove_unused(path):
                    total -= sizes[path]
                    _LOG.info("removed %s from the cache, to make room", path)
            if total > self._limit_bytes:
                _LOG.warning(
                    "the cache in %s takes %d MiB, more than its limit: all of it is in use",
                    self.root,
                    total >> 20,
                )
        if self._free() < needed_bytes:
            raise BucketError(
                Code.RESOURCE_EXHAUSTED,
                f"the disk of the cache in {self.root} has no room for {needed_bytes} bytes more",
            )

    def _place(self, uri: str) -> Path:
        if uri not in self._places:
            text = normalise(uri)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            self._places[uri] = self.root / f"{_model(text)}-{digest}"
        return self._places[uri]

    def _folders(self) -> list[Path]:
        found = self.root.glob("*/*")
        return [
            path
            for path in found
            if path.is_dir() and (_NAME.fullmatch(path.name) or path.name.startswith(_PART))
        ]

    def _free(self) -> int:
        return shutil.disk_usage(self.root).free


def _model(uri: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", uri.rpartition("/")[2])[:64]


def _entry(place: Path, number: int, fingerprint: str) -> Path:
    return place / f"{number}-{fingerprint}"


def _content(entry: Path, uri: str, number: int) -> Path:
    # With the model's name above it, as processes and logs show both.
    return entry / _model(normalise(uri)) / str(number)


def _locked(folder: Path, kind: int) -> int | None:
    """Return a descriptor that locks a folder; none if it is not there or in use otherwise."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # It may have been removed, or taken its place, before it was locked.
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _damage(entry: Path, content: Path) -> str | None:
    try:
        files: dict[str, Any] = read_document(entry / _ENTRY, "model-cache-entry")["files"]
        found = {p.relative_to(content).as_posix() for p in content.rglob("*") if p.is_file()}
        if found != files.keys():
            return f"it has other files: {sorted(found ^ files.keys())}"
        for name, told in files.items():
            path = content / name
            if path.stat().st_size != told["size"] or crc32c_of(path) != told["crc32c"]:
                return f"{name} is not what was downloaded"
    except (TimonelError, OSError, KeyError, TypeError, AttributeError) as error:
        return str(error)
    return None


def _remove_unused(folder: Path) -> bool:
    lock = _locked(folder, fcntl.LOCK_EX)
    if lock is None:
        return False
    try:
        return _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> bool:
    """Remove a folder: of one step, as far as others see."""
    aside = folder.parent.parent / aside_name(folder.name)
    try:
        folder.rename(aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _used(folder: Path) -> float:
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
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise no_room(folder, error) from error
    except TimonelError as error:
        raise BucketError(Code.RESOURCE_EXHAUSTED, error.message) from error

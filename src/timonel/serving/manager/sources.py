"""Sources of a model's versions: the interface, and local folders."""

from __future__ import annotations

import abc
import functools
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from timonel.serving.manager.plan import Candidate
from timonel.storage.content_cache import FolderLease
from timonel.storage.uris import is_local, local_path

_NUMBER = re.compile(r"\s*[+-]?\d+\s*\Z", re.ASCII)
_INT64 = range(-(2**63), 2**63)
PUBLISHED_MARK = Path("assets.extra", "timonel.json")
"""File written by `timonel export`, which publishes versions atomically by a rename."""


class VersionSource(abc.ABC):
    """Versions below a base path. Non-blocking; owned by the manager's thread."""

    @abc.abstractmethod
    def versions(self, *, relist: bool) -> Collection[int] | None:
        """Return the available versions; None if not known yet.

        Args:
            relist: Whether to look for new and removed versions.

        Raises:
            OSError: The versions cannot be listed; `strerror` says why.
        """

    @abc.abstractmethod
    def look(self, numbers: Sequence[int], enough: int) -> list[Candidate]:
        """Return the state of the versions ``numbers``, in that order.

        Args:
            numbers: The versions, newest first.
            enough: Number of complete versions that suffice; others need not be checked.
        """

    @abc.abstractmethod
    def fetch(self, candidate: Candidate) -> Future[FolderLease]:
        """Return a future of a version's local folder.

        It fails with a `StatusError`. The receiver of the result must release it.
        """

    @abc.abstractmethod
    def refresh(self) -> None:
        """List versions anew at the next `versions`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop listing and fetching."""


class FolderSource(VersionSource):
    """Versions in a local folder.

    A version that timonel published is complete when it is visible. Any other must stay unchanged
    for ``settle_s`` seconds, over at least two looks.

    Args:
        base: The folder.
        settle_s: Seconds for which a version's content must stay unchanged.
        clock: Monotonic seconds.
    """

    def __init__(
        self, base: Path, settle_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._base = base
        self._settle_s = settle_s
        self._clock = clock
        self._folders: Mapping[int, Path] | None = None
        self._unchanged: dict[Path, tuple[str, float]] = {}
        """Fingerprint of a folder, and since when."""

    def versions(self, *, relist: bool) -> Collection[int] | None:
        """Return the available versions; see `VersionSource.versions`."""
        if relist or self._folders is None:
            self._folders = None
            self._folders = version_folders(self._base)
        return self._folders.keys()

    def look(self, numbers: Sequence[int], enough: int) -> list[Candidate]:
        """Return the state of versions; see `VersionSource.look`."""
        del enough
        folders = self._folders or {}
        candidates = [self._candidate(number, folders[number]) for number in numbers]
        paths = {Path(candidate.path) for candidate in candidates}
        self._unchanged = {path: v for path, v in self._unchanged.items() if path in paths}
        return candidates

    def fetch(self, candidate: Candidate) -> Future[FolderLease]:
        """Return a future of a version's folder; see `VersionSource.fetch`."""
        done: Future[FolderLease] = Future()
        done.set_result(FolderLease(Path(candidate.path)))
        return done

    def refresh(self) -> None:
        """List versions anew."""
        self._folders = None

    def close(self) -> None:
        """Do nothing: no work is in progress."""

    def _candidate(self, number: int, path: Path) -> Candidate:
        mark = fingerprint(path)
        complete = (path / PUBLISHED_MARK).is_file() or self._is_settled(path, mark)
        return Candidate(number, str(path), mark, complete)

    def _is_settled(self, path: Path, mark: str) -> bool:
        now = self._clock()
        before, since = self._unchanged.get(path, (None, now))
        if before != mark:
            self._unchanged[path] = (mark, now)
            return False
        return now - since >= self._settle_s


@functools.lru_cache(maxsize=1024)
def folder_of(base_path: str) -> Path | None:
    """Return the local folder of a base path; None for a bucket."""
    if not is_local(base_path):
        return None
    return local_path(base_path) if "://" in base_path else Path(base_path)


def version_folders(base: Path) -> dict[int, Path]:
    """Return the version folders below ``base`` by number.

    A folder is a version if its name parses as a 64-bit integer, as in TensorFlow Serving. If two
    names give the same number, the lexically later one wins.

    Raises:
        OSError: The folder cannot be read.
    """
    found: dict[int, Path] = {}
    for path in sorted(base.iterdir()):
        if (number := version_number(path.name)) is not None:
            found[number] = path
    return found


def version_number(name: str) -> int | None:
    """Return a folder name's version number; None if not a version."""
    if _NUMBER.match(name) and (number := int(name)) in _INT64:
        return number
    return None


def labels_of(version: Path) -> tuple[str, ...]:
    """Return the class names exported with a version, if any."""
    try:
        text = (version / "assets" / "labels.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(text.splitlines())


def fingerprint(path: Path) -> str:
    """Return a hash of all file names, sizes and times below ``path``."""
    digest = hashlib.blake2b(digest_size=16)
    for name, size, mtime_ns in sorted(_files(path)):
        digest.update(f"{name}\0{size}\0{mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _files(root: Path) -> Iterable[tuple[str, int, int]]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - a Path per file and poll is slow
            try:
                status = os.stat(path)  # noqa: PTH116 - as above
            except OSError:  # removed since, or not readable
                continue
            yield path, status.st_size, status.st_mtime_ns

"""Sources of a model's versions: the interface, and local folders."""

from __future__ import annotations

import abc
import errno
import hashlib
import logging
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from timonel.data.preprocessing import TablePreprocessing, parse_preprocessing
from timonel.errors import TimonelError
from timonel.models.schema import VERSION_FILE, VersionDocument
from timonel.serving.manager.plan import Candidate
from timonel.serving.status import invalid_argument
from timonel.storage.aliases import Aliases
from timonel.storage.content_cache import FolderLease
from timonel.storage.uris import is_local, local_path

_LOG = logging.getLogger(__name__)
_NUMBER = re.compile(r"\s*[+-]?\d+\s*\Z", re.ASCII)
_INT64 = range(-(2**63), 2**63)
PUBLISHED_MARK = Path("assets.extra", "timonel.json")
"""File written by `timonel export`, which publishes versions atomically by a rename."""


class VersionSource(abc.ABC):
    """Versions below a base path.

    `versions`, `aliases`, `look` and `fetch` may block. One thread at a time calls the first three
    (`looks`), others call `fetch`. The other methods return at once; the manager's thread calls
    them.
    """

    @abc.abstractmethod
    def versions(self, *, relist: bool) -> Collection[int]:
        """Return the available versions; ``relist`` looks for new and removed ones."""

    @abc.abstractmethod
    def aliases(self) -> Mapping[str, int]:
        """Return the versions by alias, as of the last `versions`."""

    @abc.abstractmethod
    def look(self, numbers: Sequence[int], enough: int) -> list[Candidate]:
        """Return the state of the versions ``numbers``, in that order.

        Args:
            numbers: The versions, newest first.
            enough: Number of complete versions that suffice; others need not be checked.
        """

    @abc.abstractmethod
    def fetch(self, candidate: Candidate) -> FolderLease:
        """Return a version's local folder, which the caller must release."""

    @abc.abstractmethod
    def refresh(self) -> None:
        """List versions anew at the next `versions`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop fetching."""


class Unchanged:
    """Since when the content of versions is unchanged. Not thread-safe.

    Args:
        settle_s: Seconds for which content must stay unchanged, over at least two looks.
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._since: dict[int, tuple[str, float]] = {}

    def is_settled(self, number: int, mark: str, now: float) -> bool:
        """Return whether a version, now with the fingerprint ``mark``, is unchanged for long."""
        before, since = self._since.get(number, (None, now))
        if before != mark:
            self._since[number] = mark, now
            return False
        return now - since >= self._settle_s

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all other versions, so that they are new if they return."""
        self._since = {n: since for n, since in self._since.items() if n in numbers}


class FolderSource(VersionSource):
    """Versions in a local folder.

    A version that timonel published is complete when it is visible. Any other must stay unchanged
    for ``settle_s`` seconds, over at least two looks.
    """

    def __init__(
        self, base: Path, settle_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._base = base
        self._aliases = Aliases(base)
        self._unchanged = Unchanged(settle_s)
        self._clock = clock
        self._folders: Mapping[int, Path] = {}
        self._is_listed = False

    def versions(self, *, relist: bool) -> Collection[int]:
        """Return the available versions; see `VersionSource.versions`."""
        if relist or not self._is_listed:
            self._is_listed = True  # before listing, so that a concurrent `refresh` is not lost
            try:
                self._folders = version_folders(self._base)
            except OSError:
                self._is_listed = False
                raise
        return self._folders.keys()

    def aliases(self) -> Mapping[str, int]:
        """Return the versions by alias; see `VersionSource.aliases`."""
        return read_aliases(self._aliases)

    def look(self, numbers: Sequence[int], enough: int) -> list[Candidate]:
        """Return the state of versions; see `VersionSource.look`."""
        del enough
        self._unchanged.keep(numbers)
        return [self._candidate(number, self._folders[number]) for number in numbers]

    def fetch(self, candidate: Candidate) -> FolderLease:
        """Return a version's folder; see `VersionSource.fetch`."""
        return FolderLease(Path(candidate.path))

    def refresh(self) -> None:
        """List versions anew."""
        self._is_listed = False

    def close(self) -> None:
        """Do nothing: no work is in progress."""

    def _candidate(self, number: int, path: Path) -> Candidate:
        mark = fingerprint(path)
        complete = (path / PUBLISHED_MARK).is_file() or self._unchanged.is_settled(
            number, mark, self._clock()
        )
        return Candidate(number, str(path), mark, complete)


def read_aliases(aliases: Aliases) -> Mapping[str, int]:
    """Return the versions by alias. Raises `OSError`."""
    try:
        return aliases.read()
    except TimonelError as error:
        raise OSError(errno.EIO, str(error)) from error


def folder_of(base_path: str) -> Path | None:
    """Return the local folder of a base path; None for a bucket."""
    if not is_local(base_path):
        return None
    return local_path(base_path) if "://" in base_path else Path(base_path)


def version_folders(base: Path) -> dict[int, Path]:
    """Return the version folders below ``base`` by number.

    A folder is a version if its name parses as a 64-bit integer, as in TensorFlow Serving. If two
    names give the same number, the lexically later one wins. Raises `OSError`.
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
    path = version / "assets" / "labels.txt"
    try:
        # Clients see the names: a link could show them any file.
        if not path.resolve(strict=True).is_relative_to(version.resolve()):
            _LOG.warning("%s leads out of the version: its class names are not shown", path)
            return ()
        text = path.read_text(encoding="utf-8")
    except (OSError, RuntimeError, UnicodeDecodeError):
        return ()
    return tuple(text.splitlines())


def missing_of(version: Path) -> dict[str, float | str]:
    """Return the value for a missing cell by column, if a version prepares the rows of a table."""
    try:
        document = VersionDocument.read(version / VERSION_FILE, "model-version")
        transforms = document.export.preparation.transforms
        found = None if transforms is None else parse_preprocessing(dict(transforms))
    except TimonelError:
        return {}
    columns = found.columns if isinstance(found, TablePreprocessing) else ()
    return {each.column: math.nan if each.kind == "normalise" else "" for each in columns}


def check_files(version: Path) -> None:
    """Reject pipes, devices and sockets in a version, which would block whatever reads them."""
    for place, folders, names in os.walk(version):
        linked = (name for name in folders if Path(place, name).is_symlink())
        paths = [Path(place, name) for name in names]
        paths += [path for name in linked for path in Path(place, name).iterdir()]
        for path in paths:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise invalid_argument(
                    f"{path.relative_to(version)} is a pipe, a device or a socket"
                )


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

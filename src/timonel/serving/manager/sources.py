"""Sources of a model's versions: the interface, and local folders."""

from __future__ import annotations

import abc
import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from timonel.serving.manager.folders import Settling, version_folders
from timonel.serving.manager.plan import Candidate


class Held:
    """A version's folder, protected from removal until released.

    Args:
        path: The folder.
        lock: A file descriptor that holds a lock; None for a user's folder, which is never removed.
    """

    def __init__(self, path: Path, lock: int | None = None) -> None:
        self.path = path
        self._lock = lock
        self._tell: Callable[[], None] = lambda: None

    def when_released(self, tell: Callable[[], None]) -> None:
        """Set a callback for when the folder is released."""
        self._tell = tell

    def release(self) -> None:
        """Allow removal of the folder. Idempotent; not thread-safe."""
        lock, self._lock = self._lock, None
        if lock is not None:
            # In use until now: eviction removes the least recently used folders first.
            with contextlib.suppress(OSError):
                os.utime(lock)
            os.close(lock)
        tell, self._tell = self._tell, lambda: None
        tell()


class Source(abc.ABC):
    """Versions below a base path. Non-blocking; owned by the loader's thread."""

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
    def fetch(self, candidate: Candidate) -> Future[Held]:
        """Return a future of a version's local folder.

        It fails with a `StatusError`. The receiver of the result must release it.
        """

    @abc.abstractmethod
    def refresh(self) -> None:
        """List versions anew at the next `versions`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop listing and fetching."""


class FolderSource(Source):
    """Versions in a local folder.

    Args:
        base: The folder.
        settle_s: Seconds for which a version's content must stay unchanged.
    """

    def __init__(self, base: Path, settle_s: float) -> None:
        self._base = base
        self._settling = Settling(settle_s, time.monotonic)
        self._folders: Mapping[int, Path] | None = None

    def versions(self, *, relist: bool) -> Collection[int] | None:
        """Return the versions in the folder."""
        if relist or self._folders is None:
            self._folders = None
            self._folders = version_folders(self._base)
        return self._folders.keys()

    def look(self, numbers: Sequence[int], enough: int) -> list[Candidate]:
        """Return the state of all versions ``numbers``, in that order."""
        del enough
        return self._settling.look(self._folders or {}, numbers)

    def fetch(self, candidate: Candidate) -> Future[Held]:
        """Return a completed future of a version's folder."""
        there: Future[Held] = Future()
        there.set_result(Held(Path(candidate.path)))
        return there

    def refresh(self) -> None:
        """List versions anew at the next `versions`."""
        self._folders = None

    def close(self) -> None:
        """Do nothing: no work is in progress."""

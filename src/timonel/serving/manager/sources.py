"""Where a model's versions come from; here, a folder of this machine."""

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
    """A version's folder that nobody removes until it is released.

    Args:
        path: The folder.
        lock: A descriptor that holds a lock; none for a folder that is the user's own.
    """

    def __init__(self, path: Path, lock: int | None = None) -> None:
        self.path = path
        self._lock = lock
        self._tell: Callable[[], None] = lambda: None

    def when_released(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called once it is released."""
        self._tell = tell

    def release(self) -> None:
        """Let it be removed. Idempotent; belongs to one thread."""
        lock, self._lock = self._lock, None
        if lock is not None:
            # Used until now: the least recently used ones go first.
            with contextlib.suppress(OSError):
                os.utime(lock)
            os.close(lock)
        tell, self._tell = self._tell, lambda: None
        tell()


class Source(abc.ABC):
    """The versions below a base path. Owned by the loader's thread, and never makes it wait."""

    @abc.abstractmethod
    def versions(self, *, relist: bool) -> Collection[int] | None:
        """Return the versions that are there; none if that is not known yet.

        Args:
            relist: Whether to look for versions that came or went.

        Raises:
            OSError: It cannot be told; `strerror` says why.
        """

    @abc.abstractmethod
    def look(self, numbers: Sequence[int], enough: int) -> list[Candidate]:
        """Return the state of the versions ``numbers``, in that order.

        Args:
            numbers: The versions, newest first.
            enough: How many that are complete will do; others need not be looked into.
        """

    @abc.abstractmethod
    def fetch(self, candidate: Candidate) -> Future[Held]:
        """Return the folder of a version, as soon as it is on this machine.

        It fails with a `StatusError`. Whoever has the result releases it.
        """

    @abc.abstractmethod
    def refresh(self) -> None:
        """Look for versions afresh at the next `versions`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Look no more, and fetch no more."""


class FolderSource(Source):
    """Versions in a folder of this machine.

    Args:
        base: The folder.
        settle_s: How long a version's content must stay the same.
    """

    def __init__(self, base: Path, settle_s: float) -> None:
        self._base = base
        self._settling = Settling(settle_s, time.monotonic)
        self._folders: Mapping[int, Path] | None = None

    def versions(self, *, relist: bool) -> Collection[int] | None:
        """Return the versions that are there."""
        if relist or self._folders is None:
            self._folders = None
            self._folders = version_folders(self._base)
        return self._folders.keys()

    def look(self, numbers: Sequence[int], enough: int) -> list[Candidate]:
        """Return the state of the versions ``numbers``, in that order: it costs little."""
        del enough
        return self._settling.look(self._folders or {}, numbers)

    def fetch(self, candidate: Candidate) -> Future[Held]:
        """Return the folder of a version."""
        there: Future[Held] = Future()
        there.set_result(Held(Path(candidate.path)))
        return there

    def refresh(self) -> None:
        """Look for versions afresh at the next `versions`."""
        self._folders = None

    def close(self) -> None:
        """Nothing is under way."""

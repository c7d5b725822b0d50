"""Reads of objects of one kind: lists for a few reads, a watch for frequent ones."""

from __future__ import annotations

import time
from collections.abc import Mapping

from timonel.engines.kubernetes.api import Object
from timonel.engines.kubernetes.watched import Watched

_FREQUENT_S = 5.0


class ObjectView:
    """The objects of one kind with given labels. Thread-safe.

    The first read lists them. A read within 5 s of another one starts a watch, so that a short
    command sends one request, and a process that reads all the time none.

    Args:
        watched: The objects, which are not watched yet.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._read_at: float | None = None

    def objects(self) -> Mapping[str, Object]:
        """Return the objects by name, which must not be changed."""
        before, self._read_at = self._read_at, time.monotonic()
        if before is not None and self._read_at - before < _FREQUENT_S:
            return self._watched.objects()
        return self._watched.listed()[0]

    def record(self, found: Object) -> None:
        """Take an object that this process has written, so that no read shows an older one."""
        self._watched.record(found)

    def forget(self, name: str) -> None:
        """Take notice that an object does not exist."""
        self._watched.forget(name)

    def close(self) -> None:
        """Stop watching."""
        self._watched.close()

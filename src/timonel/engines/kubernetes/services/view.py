"""Reads of objects of one kind: lists for a few reads, a watch for frequent ones."""

from __future__ import annotations

import time
from collections.abc import Mapping

from timonel.engines.kubernetes.api import Api, Object
from timonel.engines.kubernetes.watched import Watched

_FREQUENT_S = 5.0


class View:
    """The objects of one kind with given labels. Thread-safe.

    The first read lists them. A read within 5 s of another one starts a watch, so that a short
    command sends one request, and a process that reads all the time none.

    Args:
        api: The cluster.
        kind: Kind of the objects.
        labels: Their labels.
        fields: Their fields, of those that the server can select by.
    """

    def __init__(
        self,
        api: Api,
        kind: str,
        labels: Mapping[str, str],
        fields: Mapping[str, str] | None = None,
    ) -> None:
        self._api = api
        self._kind = kind
        self._labels = labels
        self._fields = fields
        self._watched = Watched(api, kind, labels, fields)
        self._read_at: float | None = None

    def objects(self) -> Mapping[str, Object]:
        """Return the objects by name, which must not be changed."""
        before, self._read_at = self._read_at, time.monotonic()
        if before is not None and self._read_at - before < _FREQUENT_S:
            return self._watched.objects()
        found, _ = self._api.list_at(self._kind, self._labels, self._fields)
        return {each["metadata"]["name"]: each for each in found}

    def record(self, found: Object) -> None:
        """Take an object that this process has written, so that no read shows an older one."""
        self._watched.record(found)

    def forget(self, name: str) -> None:
        """Take notice that an object does not exist."""
        self._watched.forget(name)

    def close(self) -> None:
        """Stop watching."""
        self._watched.close()

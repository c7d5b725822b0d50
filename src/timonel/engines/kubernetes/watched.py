"""Objects of one kind, kept current by a list and a watch in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from timonel.engines.kubernetes.api import Api, Object
from timonel.engines.kubernetes.api_errors import ClusterUnavailableError, GoneError
from timonel.errors import TimonelError
from timonel.processes.backoff import backoff_s

_FIRST_LIST_S = 30.0
_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 15.0
_SHORT_S = 1.0
_IDLE_S = 60.0

logger = logging.getLogger(__name__)


class Watched:
    """The objects of one kind with given labels, without a request for each read. Thread-safe.

    A daemon thread lists the objects at the first read and watches them from then on. While the
    API server is away, the last objects stay. The thread ends when nothing was read for a minute.

    Args:
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
        self._labels = dict(labels)
        self._fields = dict(fields or {})
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._objects: Mapping[str, Object] | None = None
        self._early: dict[str, Object] = {}
        self._version = "0"
        """Version of the last list or change."""
        self._error: TimonelError | None = None
        self._read_at = 0.0
        self._closed = threading.Event()

    def objects(self) -> Mapping[str, Object]:
        """Return the latest objects by name, which must not be changed.

        Waits for the first list, up to 30 s.
        """
        with self._changed:
            self._read_at = time.monotonic()
            if self._thread is None:
                self._error = None
                self._thread = threading.Thread(
                    target=self._run, name=f"watch-{self._kind}", daemon=True
                )
                self._thread.start()
            self._changed.wait_for(lambda: self._is_listed or self._error, _FIRST_LIST_S)
            if self._objects is not None:
                return self._objects
            raise self._error or ClusterUnavailableError(
                f"the cluster at {self._api.server} has not answered within {_FIRST_LIST_S:g} s"
            )

    def listed(self) -> tuple[Mapping[str, Object], str]:
        """Ask the server for the objects by name, and the version of this list."""
        found, version = self._api.list_at(self._kind, self._labels, self._fields)
        return {each["metadata"]["name"]: each for each in found}, version

    def record(self, found: Object) -> None:
        """Take an object that this process has written or read, unless a later state is known."""
        with self._changed:
            name = found["metadata"]["name"]
            if self._objects is None:
                self._early[name] = found  # the first list may be older
            elif self._is_new(found, unknown=self._version):
                self._objects = {**self._objects, name: found}

    def forget(self, name: str, uid: str | None = None) -> None:
        """Take notice that an object does not exist.

        Args:
            uid: UID of the object that this process has deleted; another one of its name stays.
        """
        with self._changed:
            if self._objects is None or name not in self._objects:
                return
            if uid is None or self._objects[name]["metadata"]["uid"] == uid:
                self._objects = _without(self._objects, name)

    def close(self) -> None:
        """Stop watching, within 30 s; the objects are those of the last change."""
        self._closed.set()

    @property
    def _is_listed(self) -> bool:
        return self._objects is not None

    def _run(self) -> None:
        version: str | None = None
        failures = 0
        while not self._closed.wait(backoff_s(failures + 1, _BACKOFF_S, _MAX_BACKOFF_S)):
            if self._end_if_idle():
                return
            try:
                version = version or self._list()
                started = time.monotonic()
                for change, found in self._api.watch(
                    self._kind, self._labels, version, self._fields
                ):
                    failures = 0
                    version = found["metadata"]["resourceVersion"]
                    self._take(change, found)
                    if self._closed.is_set():
                        return
                # A proxy may cut connections at once.
                failures = failures + 1 if time.monotonic() - started < _SHORT_S else 0
            except ClusterUnavailableError as error:  # the watch goes on from the same version
                failures += 1
                self._fail(error)
            except GoneError:
                failures += 1
                version = None
            except TimonelError as error:
                failures += 1
                version = None
                self._fail(error)
            except Exception:
                failures += 1
                version = None
                logger.exception("cannot watch %s", self._kind)

    def _list(self) -> str:
        listed, version = self.listed()
        with self._changed:
            # Objects that were recorded after the server had read its list.
            later = {
                name: each
                for name, each in {**(self._objects or {}), **self._early}.items()
                if _is_later(each["metadata"]["resourceVersion"], version)
            }
            self._objects, self._error = {**listed, **later}, None
            self._version = version
            self._early.clear()
            self._changed.notify_all()
        return version

    def _take(self, change: str, found: Object) -> None:
        with self._changed:
            self._version = found["metadata"]["resourceVersion"]
            if change == "BOOKMARK" or self._objects is None or not self._is_new(found):
                return
            name = found["metadata"]["name"]
            if change == "DELETED":
                self._objects = _without(self._objects, name)
            else:
                self._objects = {**self._objects, name: found}

    def _fail(self, error: TimonelError) -> None:
        logger.warning("cannot watch %s: %s", self._kind, error)
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _is_new(self, found: Object, unknown: str = "0") -> bool:
        """Whether an object is later than the known one, or else than a version.

        An object that is unknown, and not later than the last change, has been deleted.
        """
        metadata = found["metadata"]
        known = (self._objects or {}).get(metadata["name"])
        before = unknown if known is None else known["metadata"]["resourceVersion"]
        return _is_later(metadata["resourceVersion"], before)

    def _end_if_idle(self) -> bool:
        with self._changed:
            if time.monotonic() - self._read_at < _IDLE_S:
                return False
            self._thread = self._objects = None
            return True


def _is_later(version: str, other: str) -> bool:
    """Compare two versions of objects of one kind.

    They are numbers that grow: https://kubernetes.io/docs/reference/using-api/api-concepts/
    """
    return int(version) > int(other)


def _without(objects: Mapping[str, Object], name: str) -> Mapping[str, Object]:
    return {each: found for each, found in objects.items() if each != name}

"""The lease by which one replica of a service makes decisions at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.api_errors import ConflictError
from timonel.engines.kubernetes.lease import claim
from timonel.engines.kubernetes.names import MANAGED
from timonel.errors import AlreadyExistsError, NotFoundError, TimonelError

LEASE_S = 15
_RENEW_S = 5.0
# The leader stops before others may start: a decision takes time.
_MARGIN_S = 3.0
_RETRY_S = 1.0
_RELEASE_S = 5.0

logger = logging.getLogger(__name__)


def _in_background(attempt: Callable[[], None]) -> None:
    threading.Thread(target=attempt, name="leadership", daemon=True).start()


class Leadership:
    """Leadership among the replicas of a service. Thread-safe.

    Requests are sent in a thread, so that an API server that does not answer blocks nobody. They
    are sent only while `holds` is called: a leader that hangs loses its leadership.

    Args:
        name: Name of the Lease object, which is created if it is missing.
        owner: Kind and name of the object with which a created lease is deleted.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        holder: str,
        *,
        owner: tuple[str, str] | None = None,
        start: Callable[[Callable[[], None]], None] = _in_background,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._name = name
        self._holder = holder
        self._owner = owner
        self._start = start
        self._clock = clock
        # Held during an attempt, by whichever thread makes it.
        self._attempting = threading.Lock()
        self._is_released = False
        self._next_at = clock()
        self._until = clock()
        self._version: str | None = None
        """Version of the lease that this replica has written; None: another one may hold it."""
        self._seen: tuple[str, float] | None = None
        """Version of another one's lease, and when it was first seen."""

    def holds(self) -> bool:
        """Return whether this replica leads; to be called once a second.

        It is true for 12 s after the request that renewed the lease last, and others take an
        unchanged lease after 15 s. So an API server that is away for less changes nothing.
        """
        is_due = self._clock() >= self._next_at and not self._is_released
        if is_due and self._attempting.acquire(blocking=False):
            self._start(self._attempt)
        return self._clock() < self._until

    def release(self) -> None:
        """Give the leadership up for good, so that another replica leads at once."""
        self._is_released = True
        self._until = self._clock()
        if not self._attempting.acquire(timeout=_RELEASE_S):
            logger.warning("the lease %s runs out by itself: the cluster is slow", self._name)
            return
        try:
            if self._version is not None:
                self._write("", self._version)
        except (ConflictError, NotFoundError):
            logger.info("another replica leads already")
        except TimonelError as error:
            logger.warning("%s", error)
        finally:
            self._attempting.release()

    def _attempt(self) -> None:
        delay_s = _RETRY_S
        try:
            if not self._is_released and self._try():
                delay_s = _RENEW_S
        except (AlreadyExistsError, ConflictError):
            logger.info("another replica was faster")
        except TimonelError as error:
            logger.warning("%s", error)
        finally:
            self._next_at = self._clock() + delay_s
            self._attempting.release()

    def _try(self) -> bool:
        """Renew the lease or take it, if it is free; return whether this replica holds it."""
        if self._version is not None:
            try:
                self._write(self._holder, self._version)
            except (ConflictError, NotFoundError):
                # Another replica has it, or an earlier request came through without an answer.
                self._version = None
            else:
                return True
        try:
            lease = self._api.get("Lease", self._name)
        except NotFoundError:
            self._lose()
            self._create()
            return True
        if not self._is_free(lease):
            self._lose()
            return False
        self._write(self._holder, lease["metadata"]["resourceVersion"])
        return True

    def _is_free(self, lease: dict[str, Any]) -> bool:
        spec = lease.get("spec") or {}
        version = lease["metadata"]["resourceVersion"]
        now = self._clock()
        # Clocks differ: an unchanged lease is timed by this machine's own.
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        duration_s = float(spec.get("leaseDurationSeconds") or LEASE_S)
        is_old = now - self._seen[1] > duration_s
        return spec.get("holderIdentity") in {None, "", self._holder} or is_old

    def _create(self) -> None:
        metadata: dict[str, Any] = {"name": self._name, "labels": MANAGED}
        if self._owner is not None:
            found = self._api.get(*self._owner)
            owner = {key: found[key] for key in ("apiVersion", "kind")}
            owner |= {key: found["metadata"][key] for key in ("name", "uid")}
            metadata["ownerReferences"] = [owner]
        asked_at = self._clock()
        lease = self._api.create(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": metadata,
                "spec": claim(self._holder, LEASE_S),
            }
        )
        self._take(lease, asked_at)

    def _write(self, holder: str, version: str) -> None:
        asked_at = self._clock()
        # With the version that was read: of two that take it at once, one is refused.
        body = {"metadata": {"resourceVersion": version}, "spec": claim(holder, LEASE_S)}
        self._take(self._api.patch("Lease", self._name, body), asked_at)

    def _take(self, lease: dict[str, Any], asked_at: float) -> None:
        self._version = lease["metadata"]["resourceVersion"]
        if not self._is_released:
            self._until = asked_at + LEASE_S - _MARGIN_S

    def _lose(self) -> None:
        self._version = None
        self._until = self._clock()

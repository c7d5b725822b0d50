"""The lease by which only one coordinator of a job works at a time.

A coordinator whose node is cut off may still run while the cluster starts another one. It stops
when it could not renew its lease for `LEASE_S`, and the other one waits as long, unless the pod
that holds the lease is gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.api_errors import ConflictError
from timonel.errors import EngineError, NotFoundError, TimonelError

LEASE_S = 60
_RENEW_S = 10.0
_POLL_S = 1.0
_ENDED = frozenset({"Succeeded", "Failed"})

logger = logging.getLogger(__name__)


def claim(holder: str, lease_s: int) -> dict[str, Any]:
    """Return the specification of a Lease object that is held from now on.

    Args:
        holder: Name of the holder; empty: the lease is free.
        lease_s: Seconds after which others may take it, unless it is renewed.
    """
    stamp = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {"holderIdentity": holder, "leaseDurationSeconds": lease_s, "renewTime": stamp}


class LostLeaseError(EngineError):
    """Another coordinator works on the job, or may do so by now."""


class Lease:
    """The lease of a job's coordinator.

    Args:
        name: Name of the Lease object, which exists.
        holder: Name of this coordinator's pod.
    """

    def __init__(self, api: Api, name: str, holder: str) -> None:
        self._api = api
        self._name = name
        self._holder = holder
        self._renewed_at = 0.0

    def acquire(self, wait: Callable[[float], object] = time.sleep) -> None:
        """Wait until no other coordinator works, and take the lease."""
        seen: tuple[object, float] | None = None
        while True:
            try:
                lease = self._api.get("Lease", self._name)
                spec = lease.get("spec") or {}
                mark = (spec.get("holderIdentity"), spec.get("renewTime"))
                now = time.monotonic()
                # Clocks differ: an unchanged lease is timed by this machine's own.
                if seen is None or seen[0] != mark:
                    seen = (mark, now)
                other = spec.get("holderIdentity")
                if other in {None, "", self._holder} or now - seen[1] > LEASE_S:
                    return self._take(lease)
                if self._is_gone(str(other)):
                    return self._take(lease)
                logger.info("waiting for the coordinator in pod %s", other)
            except ConflictError:
                logger.info("another coordinator was faster")
            except TimonelError as error:
                logger.warning("%s", error)
            wait(_POLL_S)

    def renew(self) -> None:
        """Renew the lease, if it is time."""
        now = time.monotonic()
        if now - self._renewed_at < _RENEW_S:
            return
        try:
            lease = self._api.get("Lease", self._name)
            is_mine = (lease.get("spec") or {}).get("holderIdentity") == self._holder
            if is_mine:
                self._take(lease)
        except NotFoundError as error:
            raise LostLeaseError("the job was deleted") from error
        except TimonelError:
            self.check()
            raise
        if not is_mine:
            raise LostLeaseError("another coordinator works on this job")

    def check(self) -> None:
        """Check that the lease is still valid; for any thread, as requests may hang."""
        if time.monotonic() - self._renewed_at > LEASE_S:
            raise LostLeaseError(
                f"the lease could not be renewed for {LEASE_S} s: another coordinator may work"
            )

    def release(self) -> None:
        """Give the lease back, so that a next coordinator need not wait."""
        try:
            lease = self._api.get("Lease", self._name)
            if (lease.get("spec") or {}).get("holderIdentity") == self._holder:
                version = {"resourceVersion": lease["metadata"]["resourceVersion"]}
                body = {"metadata": version, "spec": {"holderIdentity": ""}}
                self._api.patch("Lease", self._name, body)
        except TimonelError as error:
            logger.warning("%s", error)

    def _take(self, lease: dict[str, Any]) -> None:
        # With the version that was read: of two that take it at once, one is refused.
        version = lease["metadata"]["resourceVersion"]
        asked_at = time.monotonic()
        body = {"metadata": {"resourceVersion": version}, "spec": claim(self._holder, LEASE_S)}
        self._api.patch("Lease", self._name, body)
        self._renewed_at = asked_at

    def _is_gone(self, pod: str) -> bool:
        found = self._api.find("Pod", pod)
        return found is None or (found.get("status") or {}).get("phase") in _ENDED

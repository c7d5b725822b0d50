"""Documents of endpoints, in the store that the engine of their services shares.

<name>/revisions/<number>.json      endpoint-revision documents, write-once
<name>/deleted.json                 exists while the endpoint is being deleted
<name>/status.json                  endpoint-status document, written by the control plane
<name>/autoscalers/<version>.json   autoscaler documents, written by the control plane
<name>/rollouts/                    see `timonel.endpoints.rollouts.documents`

On one machine, the folder of the store has mode 0700, and also:

.lock                  locked while a command changes an endpoint
controller.lock        locked by the control plane
page.json              endpoints-page document: the port of the pages
.gateway/              configuration of Envoy, written by the control plane
<name>/history.jsonl   load and replicas of the last hour, written by the control plane
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from timonel.endpoints.autoscaling import AutoscalerState
from timonel.endpoints.spec import EndpointSpec
from timonel.engines.resources import Observed
from timonel.errors import (
    AlreadyExistsError,
    CorruptError,
    EngineError,
    NotFoundError,
    TimonelError,
)
from timonel.storage.document_store import DocumentStore

LOCK_FILE: Final = ".lock"
_NUMBERED: Final = re.compile(r"(\d+)\.json\Z", re.ASCII)
STALE_S: Final = 15.0
"""Age at which a status no longer describes an endpoint; the control plane writes one each 2 s."""


class Revision(Observed):
    """Numbered, immutable specification of an endpoint.

    Attributes:
        number: Number, from 1.
        created_at: Time in seconds since the epoch.
        cause: Command that created it, such as ``deploy digits/2`` or ``rollback to 2``.
        spec: Specification of the endpoint.
    """

    number: int
    created_at: float
    cause: str
    spec: EndpointSpec


class ObservedVersion(Observed):
    """Observed status of one version of an endpoint.

    Attributes:
        ready: Replicas that accept requests.
        running: All replicas, including those that are starting or stopping.
        desired: Replicas that the autoscaler requests.
        concurrency: Average requests in flight over the stable window.
        rate: Requests per second over the stable window.
        held: Requests that wait for a first replica.
        reason: Reason of the autoscaler for this number.
        message: Last failure of a replica.
    """

    ready: int = 0
    running: int = 0
    desired: int = 0
    concurrency: float = 0.0
    rate: float = 0.0
    held: int = 0
    reason: str = ""
    message: str | None = None


class EndpointStatus(Observed):
    """Observed status of an endpoint.

    Attributes:
        routed: Number of the revision whose traffic rules apply; 0 before the first.
        applied: Number of the one that the gateways have read, a moment later.
        proved: Versions that have had a ready replica, with the digests of their services.
        versions: Status by version.
        message: Why the latest revision is not in effect yet.
        rejected: Why Envoy does not listen with the latest settings.
        contents: `Access.contents` that the gateway has.
        at: Time of the status in seconds since the epoch.
    """

    routed: int = 0
    applied: int = 0
    proved: Mapping[int, str] = {}
    versions: Mapping[int, ObservedVersion] = {}
    message: str | None = None
    rejected: str | None = None
    contents: str | None = None
    at: float = 0.0

    def is_stale(self, now: float) -> bool:
        """Return whether the control plane has published no newer status for too long."""
        return now - self.at >= STALE_S

    def state(self, now: float) -> str:
        """Return ready, starting, idle (at zero), "not listening" or stale.

        Args:
            now: The time in seconds since the epoch.
        """
        if self.at and self.is_stale(now):
            return "stale"
        if self.rejected:
            return "not listening"
        versions = self.versions.values()
        if any(each.ready for each in versions):
            return "ready"
        started = self.routed and not any(each.desired for each in versions)
        return "idle" if started else "starting"


@dataclass(frozen=True)
class EndpointFolder:
    """Documents of one endpoint."""

    documents: DocumentStore
    name: str

    @property
    def is_deleted(self) -> bool:
        """Whether the endpoint is being deleted."""
        try:
            self.documents.read_bytes(f"{self.name}/deleted.json")
        except NotFoundError:
            return False
        return True

    @property
    def place(self) -> str:
        """Where its documents are, for messages."""
        return self.documents.place(self.name)

    def numbers(self) -> list[int]:
        """Return the numbers of all revisions, ascending."""
        return self._numbered("revisions")

    def revision(self, number: int | None = None) -> Revision:
        """Return a revision; the latest by default."""
        numbers = self.numbers()
        if not numbers:
            raise unknown_endpoint(self.name)
        if number is not None and number not in numbers:
            raise NotFoundError(
                f"{self.name} has no revision {number}",
                hint=f"it has {numbers[0]} to {numbers[-1]}",
            )
        name = self._revision(numbers[-1] if number is None else number)
        body = self.documents.read(name, "endpoint-revision")
        try:
            return Revision.model_validate(body)
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise CorruptError(
                f"the endpoint document {self.documents.place(name)} is damaged: {reason}",
                hint="remove it to return to the previous revision",
            ) from error

    def revisions(self) -> list[Revision]:
        """Return all revisions, oldest first."""
        return [self.revision(number) for number in self.numbers()]

    def add(self, spec: EndpointSpec, cause: str, *, after: int) -> Revision:
        """Add a revision and return it; return the latest one if nothing changed.

        Args:
            after: Number of the revision to replace; 0 for a new endpoint.
        """
        numbers = self.numbers()
        if numbers and self.is_deleted:
            raise EngineError(f"{self.name} is being deleted", hint="wait until it is gone")
        number = (numbers[-1] if numbers else 0) + 1
        if number != after + 1:
            raise self._changed_meanwhile()
        if not numbers and self.is_deleted:
            self.remove()  # what an interrupted removal has left
        if numbers:
            latest = self.revision()
            if latest.spec == spec:
                return latest
        revision = Revision(number=number, created_at=time.time(), cause=cause, spec=spec)
        body = revision.model_dump(mode="json")
        try:
            self.documents.create(self._revision(number), "endpoint-revision", body)
        except AlreadyExistsError:
            raise self._changed_meanwhile() from None
        except (TimonelError, OSError):
            if not numbers:
                with contextlib.suppress(TimonelError, OSError):
                    self.remove()
            raise
        return revision

    def delete(self) -> None:
        """Mark the endpoint as deleted; the control plane removes it."""
        self.documents.write_bytes(f"{self.name}/deleted.json", b"{}\n")

    def remove(self) -> None:
        """Remove all documents of the endpoint."""
        self.documents.remove(self.name)

    def write_status(self, status: EndpointStatus) -> None:
        """Publish the status."""
        body = status.model_dump(mode="json")
        self.documents.write(f"{self.name}/status.json", "endpoint-status", body)

    def status(self) -> EndpointStatus:
        """Return the last published status; an empty one if it cannot be read."""
        try:
            body = self.documents.read(f"{self.name}/status.json", "endpoint-status")
            return EndpointStatus.model_validate(body)
        except (TimonelError, ValueError):
            return EndpointStatus()  # the control plane writes it again

    def write_autoscaler(self, version: int, state: AutoscalerState) -> None:
        """Save the state of a version's autoscaler."""
        body = {"state": json.loads(state.to_json())}
        self.documents.write(self._autoscaler(version), "autoscaler", body)

    def autoscaler(self, version: int) -> AutoscalerState | None:
        """Return the saved state of a version's autoscaler; None without a document."""
        try:
            body = self.documents.read(self._autoscaler(version), "autoscaler")
        except NotFoundError:
            return None
        return AutoscalerState.from_json(json.dumps(body.get("state")))

    def remove_autoscalers(self, kept: Collection[int]) -> None:
        """Remove the states of versions other than these."""
        for version in self._numbered("autoscalers"):
            if version not in kept:
                self.documents.remove(self._autoscaler(version))

    def _autoscaler(self, version: int) -> str:
        return f"{self.name}/autoscalers/{version}.json"

    def _revision(self, number: int) -> str:
        return f"{self.name}/revisions/{number:06d}.json"

    def _numbered(self, folder: str) -> list[int]:
        names = self.documents.find(f"{self.name}/{folder}")
        found = (_NUMBERED.match(name.rpartition("/")[2]) for name in names)
        return sorted(int(each[1]) for each in found if each is not None)

    def _changed_meanwhile(self) -> EngineError:
        return EngineError(
            f"{self.name} was changed by another command meanwhile",
            hint="check the endpoint and try again",
        )


def list_endpoints(documents: DocumentStore) -> list[EndpointFolder]:
    """Return all endpoints by name; a killed deployment leaves none."""
    parts = (name.split("/") for name in documents.find())
    names = {each[0] for each in parts if each[1:2] == ["revisions"] and _NUMBERED.match(each[-1])}
    return [EndpointFolder(documents, name) for name in sorted(names)]


def open_endpoint(documents: DocumentStore, name: str) -> EndpointFolder:
    """Return an endpoint.

    Raises:
        NotFoundError: No such endpoint.
    """
    known = {endpoint.name: endpoint for endpoint in list_endpoints(documents)}
    if name not in known:
        raise unknown_endpoint(name, tuple(known))
    return known[name]


def unknown_endpoint(name: str, known: tuple[str, ...] = ()) -> NotFoundError:
    """Return the error for an unknown endpoint."""
    return NotFoundError(
        f"no such endpoint: {name}",
        hint=f"the endpoints are: {', '.join(known)}"
        if known
        else "create one with 'timonel deploy'",
    )

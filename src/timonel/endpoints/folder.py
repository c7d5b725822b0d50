"""Layout and documents of endpoint folders.

<endpoints>/                    mode 0700
  .lock                         locked while a command changes an endpoint
  controller.lock               locked by the control plane
  page.json                     endpoints-page document: the port of the pages
  .gateway/                     configuration of Envoy, written by the control plane
  <name>/revisions/<number>.json   endpoint-revision documents, write-once
  <name>/deleted                exists while the endpoint is being deleted
  <name>/status.json            endpoint-status document, written by the control plane
  <name>/autoscalers/<version>.json   autoscaler documents, written by the control plane
  <name>/rollouts/              documents of rollouts; see `timonel.endpoints.rollouts.documents`
  <name>/history.jsonl          load and replicas of the last hour, written by the control plane
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
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
from timonel.storage import document, read_document, write_document
from timonel.storage.atomic import aside_name, create_bytes, unwritable

LOCK_FILE: Final = ".lock"
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


class VersionStatus(Observed):
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
        proved: Versions that have had a ready replica, with the digests of their services.
        versions: Status by version.
        message: Why the latest revision is not in effect yet.
        rejected: Why Envoy does not listen with the latest settings.
        at: Time of the status in seconds since the epoch.
    """

    routed: int = 0
    proved: Mapping[int, str] = {}
    versions: Mapping[int, VersionStatus] = {}
    message: str | None = None
    rejected: str | None = None
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

    root: Path

    @property
    def name(self) -> str:
        """Name of the endpoint."""
        return self.root.name

    @property
    def is_deleted(self) -> bool:
        """Whether the endpoint is being deleted."""
        return (self.root / "deleted").exists()

    def numbers(self) -> list[int]:
        """Return the numbers of all revisions, ascending."""
        names = (path.stem for path in (self.root / "revisions").glob("[0-9]*.json"))
        return sorted(int(name) for name in names if name.isdigit())

    def revision(self, number: int | None = None) -> Revision:
        """Return a revision; the latest by default.

        Raises:
            NotFoundError: No such endpoint or revision.
            CorruptError: The document is damaged.
            FormatError: A newer release wrote it.
        """
        numbers = self.numbers()
        if not numbers:
            raise unknown_endpoint(self.name)
        if number is not None and number not in numbers:
            raise NotFoundError(
                f"{self.name} has no revision {number}",
                hint=f"it has {numbers[0]} to {numbers[-1]}",
            )
        path = self._path(numbers[-1] if number is None else number)
        body = read_document(path, "endpoint-revision")
        try:
            return Revision.model_validate(body)
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise CorruptError(
                f"the endpoint document {path} is damaged: {reason}",
                hint="remove it to return to the previous revision",
            ) from error

    def revisions(self) -> list[Revision]:
        """Return all revisions, oldest first."""
        return [self.revision(number) for number in self.numbers()]

    def add(self, spec: EndpointSpec, cause: str, *, after: int) -> Revision:
        """Add a revision and return it; return the latest one if nothing changed.

        Args:
            spec: The new specification.
            cause: What made it.
            after: Number of the revision to replace; 0 for a new endpoint.

        Raises:
            EngineError: The endpoint is being deleted, or another command has added a revision.
        """
        if self.is_deleted:
            raise EngineError(f"{self.name} is being deleted", hint="wait until it is gone")
        numbers = self.numbers()
        number = (numbers[-1] if numbers else 0) + 1
        if number != after + 1:
            raise self._changed_meanwhile()
        if numbers:
            latest = self.revision()
            if latest.spec == spec:
                return latest
        revision = Revision(number=number, created_at=time.time(), cause=cause, spec=spec)
        body = document("endpoint-revision", revision.model_dump(mode="json"))
        try:
            self._path(number).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            create_bytes(self._path(number), json.dumps(body, indent=2).encode() + b"\n")
        except AlreadyExistsError:
            raise self._changed_meanwhile() from None
        except (TimonelError, OSError):
            if not numbers:
                shutil.rmtree(self.root, ignore_errors=True)
            raise
        return revision

    def delete(self) -> None:
        """Mark the endpoint as deleted; the control plane removes it."""
        (self.root / "deleted").touch()

    def remove(self) -> None:
        """Remove the folder atomically."""
        aside = self.root.with_name(aside_name(self.name))
        self.root.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def write_status(self, status: EndpointStatus) -> None:
        """Publish the status."""
        write_document(self.root / "status.json", "endpoint-status", status.model_dump(mode="json"))

    def status(self) -> EndpointStatus:
        """Return the last published status; an empty one if it cannot be read."""
        try:
            body = read_document(self.root / "status.json", "endpoint-status")
            return EndpointStatus.model_validate(body)
        except (TimonelError, ValueError):
            return EndpointStatus()  # the control plane writes it again

    def write_autoscaler(self, version: int, state: AutoscalerState) -> None:
        """Save the state of a version's autoscaler."""
        path = self._autoscaler(version)
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise unwritable(path.parent, error) from error
        write_document(path, "autoscaler", {"state": json.loads(state.to_json())})

    def autoscaler(self, version: int) -> AutoscalerState | None:
        """Return the saved state of a version's autoscaler; None without a document.

        Raises:
            CorruptError: The document is damaged.
            FormatError: A newer release wrote it, or the state cannot be read.
            InputError: The document cannot be read.
        """
        path = self._autoscaler(version)
        try:
            body = read_document(path, "autoscaler")
        except NotFoundError:
            return None
        return AutoscalerState.from_json(json.dumps(body.get("state")))

    def remove_autoscalers(self, kept: Collection[int]) -> None:
        """Remove the states of versions other than these."""
        for path in (self.root / "autoscalers").glob("[0-9]*.json"):
            if path.stem not in {str(version) for version in kept}:
                path.unlink(missing_ok=True)

    def _autoscaler(self, version: int) -> Path:
        return self.root / "autoscalers" / f"{version}.json"

    def _path(self, number: int) -> Path:
        return self.root / "revisions" / f"{number:06d}.json"

    def _changed_meanwhile(self) -> EngineError:
        return EngineError(
            f"{self.name} was changed by another command meanwhile",
            hint="check the endpoint and try again",
        )


def list_endpoints(folder: Path) -> list[EndpointFolder]:
    """Return the endpoints of a workspace by name; a killed deployment leaves an empty folder."""
    found = (EndpointFolder(path.parent) for path in sorted(folder.glob("[a-z]*/revisions")))
    return [each for each in found if each.numbers()]


def open_endpoint(folder: Path, name: str) -> EndpointFolder:
    """Return an endpoint.

    Raises:
        NotFoundError: No such endpoint.
    """
    known = {endpoint.name: endpoint for endpoint in list_endpoints(folder)}
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

"""What the control plane remembers of an endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from timonel.endpoints.control.faults import Faults
from timonel.endpoints.control.following import followed
from timonel.endpoints.control.plan import Plan, plan, ready_addresses, service_spec
from timonel.endpoints.control.scaling import Scaler
from timonel.endpoints.control.warm import uses_tensorflow
from timonel.endpoints.control.watched_files import AccessFiles
from timonel.endpoints.folder import EndpointFolder, ObservedVersion, Revision
from timonel.endpoints.gateway.parts import EndpointRoute, Secrets
from timonel.endpoints.spec import Access, service_name
from timonel.engines import ServiceSpec, ServiceStatus
from timonel.errors import CorruptError, SpecError, TimonelError
from timonel.storage import Workspace

_RETRY_S = 1.0
_SETTLE_S = 2.0
"""Time from a change of the traffic to the end of replicas that get none."""


class ControlledEndpoint:
    """An endpoint: its revisions, what should be, and its autoscalers.

    Args:
        before: What the gateway has of it; None if it has nothing.
        read_contents: Returns confidential contents of its access by their id.
        sockets: Private folder of the replicas' sockets; None: they listen on ports.
    """

    def __init__(
        self,
        folder: EndpointFolder,
        workspace: Workspace,
        before: EndpointRoute | None,
        read_contents: Callable[[str], Secrets],
        sockets: str | None = None,
    ) -> None:
        self.folder = folder
        self.name = folder.name
        self.status = folder.status()
        self.services: dict[int, ServiceStatus] = {}
        self.scalers: dict[int, Scaler] = {}
        self.plan: Plan | None = None
        self.is_warmed = False
        self.faults = Faults(folder.name)
        self._workspace = workspace
        self._sockets = sockets
        self._before = before
        self._read_contents = read_contents
        self._secrets = before.secrets if before else Secrets()
        self._contents: str | None = None
        """Id of the confidential contents in `_secrets`; those of the gateway may be older ones."""
        self._failed: tuple[str | None, float] = (None, 0.0)
        """Contents that could not be read, and when they are read again."""
        self._files = AccessFiles(self._secrets)
        self._latest: Revision | None = None
        self._numbers: list[int] = []
        self._revisions: dict[int, Revision] = {}
        self._specs: dict[tuple[int, int], ServiceSpec] = {}
        self._obsolete: dict[int, float] = {}

    @property
    def latest(self) -> Revision:
        """The latest revision that can be read."""
        assert self._latest is not None
        return self._latest

    @property
    def routed(self) -> Revision | None:
        """The revision whose traffic applies."""
        return self._revisions.get(self.status.routed)

    def revision(self, number: int, use: str = "a revision") -> Revision | None:
        """Return a revision; None if there is none, or it cannot be read.

        Args:
            use: What it is read for; a fault lasts until the next call with the same use.
        """
        with self.faults.of(use):
            if number in self._numbers and number not in self._revisions:
                self._revisions[number] = self.folder.revision(number)
        return self._revisions.get(number)

    def refresh(self, services: Mapping[int, ServiceStatus], now: float) -> bool:
        """Plan, with new revisions; return whether other traffic applies now.

        Without its latest revision, that whose traffic applies stays.

        Args:
            services: Services by version.
            now: The time in seconds since the epoch.
        """
        self.services = dict(services)
        self._numbers = self.folder.numbers()
        self._revisions = {n: r for n, r in self._revisions.items() if n in self._numbers}
        latest = self.revision(max(self._numbers, default=0), "the latest revision")
        routed = self.revision(self.status.routed, "the routed revision")
        latest = latest or routed
        if latest is None:
            raise CorruptError(f"no revision of {self.name} can be read")
        if latest is not self._latest:
            self._latest, self._specs = latest, {}
            self.is_warmed = uses_tensorflow(latest.spec, self._workspace)
        planned = plan(latest, routed, self.status.proved, self.services, self._spec_of)
        before = (self.status.routed, self.status.proved)
        self.plan = planned
        self.status = self.status.model_copy(
            update={"routed": planned.routed, "proved": planned.proved, "message": planned.message}
        )
        self._find_scalers(now)
        return before != (planned.routed, planned.proved)

    def note_applied(self) -> None:
        """Note that the gateways have the routes of the routed revision."""
        self.status = self.status.model_copy(update={"applied": self.status.routed})

    def follow(self) -> None:
        """Add a revision if the alias that the endpoint follows has moved."""
        if self._latest is None or self.plan is None:
            return
        moved = followed(self._latest.spec, self._workspace)
        if moved is not None:
            self.folder.add(*moved, after=self._latest.number)

    async def refresh_contents(self) -> None:
        """Read the confidential contents that the latest revision names, unless they are known.

        Without them, those before stay.
        """
        access, now = self.latest.spec.access, time.monotonic()
        needed, (failed, retry_at) = access.contents, self._failed
        is_due = needed != failed or now >= retry_at
        if needed is not None and (needed == self._contents or not is_due):
            return
        self._failed = (needed, now + _RETRY_S)
        with self.faults.of("contents"):
            try:
                self._secrets = (
                    Secrets()
                    if needed is None
                    else await asyncio.to_thread(self._read_contents, needed)
                )
            except TimonelError as error:
                stays = self._secrets.has(access)
                effect = "the former ones stay" if stays else "no request is accepted"
                raise SpecError(f"{error}; {effect}", hint=error.hint) from error
            self._contents = needed

    def take_over(self) -> None:
        """Go on from what the leader before has saved."""
        self.status = self.folder.status()
        self.scalers = {}

    def end(self) -> None:
        """Let the gateway accept no more requests: the endpoint is to be deleted."""
        self.plan, self._before = None, None

    def _spec_of(self, revision: Revision, version: int) -> ServiceSpec:
        key = (revision.number, version)
        if key not in self._specs:
            self._specs[key] = service_spec(
                revision.spec, version, self._workspace.uri, self._sockets
            )
        return self._specs[key]

    def obsolete(self, now: float) -> list[ServiceStatus]:
        """Return the services to delete: without traffic, and Envoy had the time to notice."""
        assert self.plan is not None
        unused = self.services.keys() - self.plan.services.keys()
        self._obsolete = {each: min(now, self._obsolete.get(each, now)) for each in unused}
        due = [each for each, since in self._obsolete.items() if now - since >= _SETTLE_S]
        return [self.services[version] for version in due]

    def _find_scalers(self, now: float) -> None:
        """Have an autoscaler for each version, with the latest policy."""
        assert self.plan is not None
        versions = self.plan.services.keys()
        if versions != self.scalers.keys():
            self.scalers = {v: s for v, s in self.scalers.items() if v in versions}
            for version in versions - self.scalers.keys():
                self.scalers[version] = self._new_scaler(version, now)
            self.folder.remove_autoscalers(versions)
        for scaler in self.scalers.values():
            scaler.configure(self.latest.spec.scaling)

    def _new_scaler(self, version: int, now: float) -> Scaler:
        """Return an autoscaler that goes on where an earlier one ended."""
        saved = None
        with self.faults.of("autoscaler"):
            saved = self.folder.autoscaler(version)
        spec, service = self.latest.spec, self.services.get(version)
        ready = 0 if service is None else len(service.ready)
        made = Scaler(spec.scaling, now, ready, saved)
        learned = [each.pattern for each in self.scalers.values() if each.pattern is not None]
        if learned:
            # The load of the endpoint recurs, whatever its version.
            made.expect(learned[-1], spec.traffic.percent.get(version, 0) / 100)
        return made

    def route(self, now: float) -> EndpointRoute | None:
        """Return what the gateway needs; None if it must not accept requests."""
        if self.plan is None or self.routed is None:
            # Nothing can be read: what applied before stays, with the replicas of today.
            if self._before is None:
                return None
            return replace(self._before, ready=ready_addresses(self._before, self.services))
        spec = self.latest.spec
        secrets = self._secrets
        if spec.access.contents is None:
            secrets = self._read_files(spec.access, now)
        if not secrets.has(spec.access):
            return None
        found = EndpointRoute(spec, self.routed.spec.traffic, secrets=secrets)
        return replace(found, ready=ready_addresses(found, self.services))

    def _read_files(self, access: Access, now: float) -> Secrets:
        for files, paths in self._files.needed(access):
            with self.faults.of(files.what):
                files.refresh(paths, now)
        return self._files.secrets

    def publish(
        self, now: float, held: Mapping[str, int], rejected: str | None, fault: str | None
    ) -> None:
        """Write the status.

        Args:
            now: The time of the autoscalers in seconds.
            held: Requests that wait for a first replica, by service.
            rejected: Why the gateway does not listen.
            fault: Fault that concerns all endpoints.
        """
        versions = {
            version: self._version_status(
                scaler, self.services.get(version), now, held.get(service_name(self.name, version))
            )
            for version, scaler in self.scalers.items()
        }
        message = self.faults.message or fault or (self.plan.message if self.plan else None)
        update = {
            "versions": versions,
            "message": message,
            "rejected": rejected,
            "contents": self._contents,
            "at": time.time(),
        }
        self.folder.write_status(self.status.model_copy(update=update))

    def _version_status(
        self, scaler: Scaler, service: ServiceStatus | None, now: float, held: int | None
    ) -> ObservedVersion:
        load, decision = scaler.load(now), scaler.decision
        replicas = () if service is None else service.replicas
        messages = [each.message for each in replicas if each.message]
        return ObservedVersion(
            ready=0 if service is None else len(service.ready),
            running=len(replicas),
            desired=0 if service is None else service.requested,
            concurrency=round(load.concurrency, 3),
            rate=round(load.rate, 3),
            held=held or 0,
            reason="" if decision is None else decision.reason,
            message=messages[-1] if messages else None,
        )

"""Handle of an endpoint: inspect and change it."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from timonel.endpoints import folder as folders
from timonel.endpoints.access_documents import AccessDocuments
from timonel.endpoints.checks import check_autoscaler, check_spec, validated
from timonel.endpoints.control.console.address import pages_url
from timonel.endpoints.control.plan import services_by_version
from timonel.endpoints.control.service import SERVICE, failure_of, run_control, update_control
from timonel.endpoints.engine import FOLDER, LOCATION, claim, documents_of, engine_of
from timonel.endpoints.folder import EndpointFolder, EndpointStatus, Revision
from timonel.endpoints.gateway.process import SERVICE as GATEWAY
from timonel.endpoints.rollouts.documents import (
    Command,
    RolloutFolder,
    latest_rollout,
    new_rollout,
    rollouts,
)
from timonel.endpoints.spec import EndpointSpec, Traffic, format_shares
from timonel.endpoints.waiting import wait_until_ready
from timonel.engines import OutsideAddress, ServiceStatus
from timonel.errors import EngineError, NotFoundError, SpecError, TimonelError
from timonel.storage import Workspace, exclusive, join

_logger = logging.getLogger(__name__)
_POLL_S = 0.1
_DELETE_TIMEOUT_S = 60.0
_LOCK_TIMEOUT_S = 120.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - to connect to, not to bind


@dataclass(frozen=True)
class Endpoint:
    """Handle of an endpoint."""

    workspace: Workspace
    name: str

    @property
    def folder(self) -> EndpointFolder:
        """Documents of the endpoint."""
        return EndpointFolder(documents_of(self.workspace), self.name)

    @property
    def spec(self) -> EndpointSpec:
        """Latest specification."""
        return self.folder.revision().spec

    @property
    def revision(self) -> Revision:
        """Latest revision."""
        return self.folder.revision()

    @property
    def revisions(self) -> list[Revision]:
        """All revisions, oldest first."""
        return self.folder.revisions()

    @property
    def status(self) -> EndpointStatus:
        """Latest status that the control plane published."""
        return self.folder.status()

    @property
    def url(self) -> str:
        """Address of REST and gRPC for clients of the engine."""
        spec, engine = self.spec, engine_of(self.workspace)
        if engine.is_one_machine:
            return spec.url
        return f"{spec.scheme}://{engine.address(self.name, spec.host, spec.port)}"

    @property
    def outside(self) -> OutsideAddress | None:
        """Where a proxy of the cluster accepts requests from outside; None: nowhere."""
        return engine_of(self.workspace).outside(self.name)

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine."""
        return engine_of(self.workspace).is_one_machine

    @property
    def local_url(self) -> str:
        """Address of REST for clients on this machine."""
        host = _ANY.get(self.spec.host, self.spec.host)
        return self.spec.model_copy(update={"host": host}).url

    @property
    def is_controlled(self) -> bool:
        """Whether the control plane runs."""
        try:
            return engine_of(self.workspace).service(SERVICE).is_running
        except NotFoundError:
            return False

    @property
    def routed(self) -> Revision | None:
        """Revision whose traffic rules are in effect; None before the first."""
        number = self.status.routed
        return self.folder.revision(number) if number else None

    @property
    def state(self) -> str:
        """State in one word.

        One of ready, starting, idle (at zero), "not listening" (the gateway cannot use the
        address), deleting, down (no control plane runs), or stale (one runs, but has not published
        a status recently).
        """
        if self.folder.is_deleted:
            return "deleting"
        if not self.is_controlled:
            return "down"
        return self.status.state(time.time())

    @property
    def page_url(self) -> str | None:
        """Address of the page that the control plane serves; None while it is down or elsewhere."""
        if not self.is_local:
            return None
        address = pages_url(self.workspace.endpoints) if self.is_controlled else None
        return None if address is None else f"{address}/endpoints/{self.name}"

    @property
    def services(self) -> dict[int, ServiceStatus]:
        """Status of the service of each version, by version."""
        return services_by_version(self.name, engine_of(self.workspace).services())

    def change(self, cause: str, **changes: object) -> Revision:
        """Add a revision with changed fields, and return it.

        Raises:
            SpecError: A value is invalid.
            EngineError: Another command changed the endpoint at the same time.
        """
        before = self.folder.revision()
        spec = validated({**before.spec.model_dump(), **changes})
        check_spec(spec, self.workspace)
        check_autoscaler(spec, engine_of(self.workspace))
        return record(self.workspace, spec, cause, after=before.number)

    def split(
        self, percent: Mapping[int, int] | None = None, *, plain: bool = False, **rules: Any
    ) -> Revision:
        """Change the traffic rules; return the new revision.

        Args:
            percent: Percentages by version; None keeps them.
            plain: Remove all rules that are not given.
            **rules: Other fields of `Traffic`.

        Raises:
            SpecError: A value is invalid.
            NotFoundError: A version does not exist.
            EngineError: Another command changed the endpoint at the same time.
        """
        before = self.spec.traffic.model_dump()
        if plain:
            before = {"percent": before["percent"]}
        shares = {} if percent is None else {"percent": dict(percent)}
        words = ["split", format_shares(percent or {}), "plain" if plain else "", *sorted(rules)]
        cause = " ".join(word for word in words if word)
        # Percentages are the user's decision, which an alias must not undo.
        kept = {"follow": None} if percent else {}
        return self.change(cause, traffic={**before, **shares, **rules}, **kept)

    def scale(self, least: int | None = None, most: int | None = None) -> Revision:
        """Change the bounds of the number of replicas; return the new revision."""
        scaling = self.spec.scaling.model_dump()
        if least is not None:
            scaling |= {"min_replicas": least}
        if most is not None:
            scaling |= {"max_replicas": most}
        scaling["initial_replicas"] = max(
            scaling["min_replicas"], min(scaling["initial_replicas"], scaling["max_replicas"] or 1)
        )
        return self.change(
            f"scale {scaling['min_replicas']} to {scaling['max_replicas']}", scaling=scaling
        )

    def rollback(self, number: int | None = None) -> Revision:
        """Return to an earlier revision, by default the last one that differs.

        This adds a revision with the same contents but the present address, access control and
        rates: a rollback must not accept revoked keys again, or open an endpoint to a network.
        Running replicas of its versions are kept. The endpoint no longer follows an alias.

        Raises:
            SpecError: No earlier revision differs by more than those.
            NotFoundError: No such revision.
        """
        latest = self.folder.revision()
        numbers = self.folder.numbers() if number is None else [number]
        for each in reversed(numbers):
            spec = self.folder.revision(each).spec.exposed_as(latest.spec)
            if number is not None or spec != latest.spec:
                check_spec(spec, self.workspace)
                spec = spec.model_copy(update={"follow": None})
                return record(self.workspace, spec, f"rollback to {each}", after=latest.number)
        raise SpecError(
            f"{self.name} has no earlier revision to return to",
            hint=f"'timonel endpoints show {self.name}' lists its revisions",
        )

    @property
    def rollouts(self) -> list[RolloutFolder]:
        """All rollouts, oldest first."""
        return rollouts(self.folder.documents, self.name)

    def find_rollout(self, number: int | None = None) -> RolloutFolder:
        """Return a rollout; the latest by default.

        Raises:
            NotFoundError: No such rollout.
        """
        known = {each.number: each for each in self.rollouts}
        if not known:
            raise NotFoundError(f"{self.name} has no rollout", hint="start one with --to VERSION")
        if number is not None and number not in known:
            raise NotFoundError(
                f"{self.name} has no rollout {number}", hint=f"it has 1 to {max(known)}"
            )
        return known[number or max(known)]

    def rollout(self, to: int, **fields: Any) -> RolloutFolder:
        """Start a rollout of a version; the control plane carries it out.

        Args:
            to: The version.
            **fields: Other fields of `Rollout`.

        Raises:
            SpecError: A field is invalid, or several versions get requests.
            NotFoundError: No such version.
            EngineError: Another rollout is in progress.
        """
        revision = self.folder.revision()
        if revision.spec.follow is not None:
            new_rollout(revision, to, time.time(), fields)  # checks it
            revision = self.change(f"rollout of version {to}", follow=None)
        with locked(self.workspace):
            current = latest_rollout(self.folder.documents, self.name)
            if current is not None and not current.has_ended:
                raise EngineError(
                    f"rollout {current.number} of {self.name} is in progress",
                    hint=f"end it with 'timonel endpoints rollout {self.name} --abort'",
                )
            made = new_rollout(revision, to, time.time(), fields)
            percent = {made.base: 100 - made.steps[0], made.to: made.steps[0]}
            traffic = {**revision.spec.traffic.model_dump(), "percent": percent}
            check_spec(
                revision.spec.model_copy(update={"traffic": Traffic(**traffic)}), self.workspace
            )
            number = 1 if current is None else current.number + 1
            documents = RolloutFolder(self.folder.documents, self.name, number)
            documents.create(made)
            run_control(self.workspace, engine_of(self.workspace))
        return documents

    def command_rollout(self, command: Command) -> RolloutFolder:
        """Pause, resume or abort the current rollout.

        Raises:
            NotFoundError: No rollout is in progress.
        """
        with locked(self.workspace):
            current = latest_rollout(self.folder.documents, self.name)
            if current is None or current.has_ended:
                raise NotFoundError(
                    f"{self.name} has no rollout in progress", hint="start one with --to VERSION"
                )
            current.command(command, time.time())
            run_control(self.workspace, engine_of(self.workspace))
        return current

    def log_sources(self) -> list[tuple[str, str]]:
        """Return replicas of versions, the gateway and the control plane, each with its service."""
        engine = engine_of(self.workspace)
        names = [service.name for service in self.services.values()]
        found = []
        gateway = (GATEWAY,) if engine.is_one_machine else ()
        for name in (*names, *gateway, SERVICE):
            with contextlib.suppress(NotFoundError):
                found += [(replica.name, name) for replica in engine.service(name).replicas]
        return found

    def log(self, service: str, replica: str) -> list[str]:
        """Return the lines of a replica's output."""
        return list(engine_of(self.workspace).logs(service, replica))

    def delete(self, *, wait: bool = True) -> None:
        """Delete the endpoint and its replicas; return once they are gone, if ``wait`` is true.

        Raises:
            EngineError: They are not gone after a minute.
        """
        with locked(self.workspace):
            self.folder.delete()
            # The control plane may only read them.
            if (confidential := engine_of(self.workspace).confidential(FOLDER)) is not None:
                AccessDocuments(confidential, self.name).remove()
            run_control(self.workspace, engine_of(self.workspace))
        deadline = time.monotonic() + _DELETE_TIMEOUT_S
        while wait and self.name in {each.name for each in list_endpoints(self.workspace)}:
            if self.control_failure():
                self._delete_without_control()
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{self.name} is still being deleted", hint="its replicas finish requests"
                )
            time.sleep(_POLL_S)

    def wait(
        self, timeout_s: float = 600.0, on_change: Callable[[EndpointStatus], None] | None = None
    ) -> None:
        """Wait until the latest revision is in effect and has a ready replica, or is at zero again.

        Args:
            timeout_s: Time limit in seconds.
            on_change: Called when the status has changed.

        Raises:
            ServingError: It is not ready in time, or the gateway cannot listen.
        """
        wait_until_ready(self, timeout_s, on_change)

    def control_failure(self) -> str | None:
        """Return why no control plane of another machine runs; None while it does, or starts."""
        if self.is_local:
            return None
        try:
            service = engine_of(self.workspace).service(SERVICE)
        except NotFoundError:
            return None
        reason = failure_of(service)
        return None if reason is None else f"no control plane: {reason}"

    def _delete_without_control(self) -> None:
        """Delete what the control plane would, as it does not start."""
        engine, documents = engine_of(self.workspace), documents_of(self.workspace)
        for service in self.services.values():
            engine.delete(service.name)
        engine.conceal(self.name)
        self.folder.remove()
        if not folders.list_endpoints(documents):
            documents.remove(LOCATION)
            engine.delete(SERVICE)

    def is_listening(self) -> bool:
        """Return whether the gateway accepts connections of the endpoint.

        Of one on another machine, its status says so.
        """
        if not self.is_local:
            return self.status.state(time.time()) in {"ready", "idle"}
        spec = self.spec
        host = _ANY.get(spec.host, spec.host)
        try:
            socket.create_connection((host, spec.port), timeout=1).close()
        except OSError:
            return False
        return True


def list_endpoints(workspace: Workspace) -> list[Endpoint]:
    """Return the endpoints of a workspace by name."""
    found = folders.list_endpoints(documents_of(workspace))
    return [Endpoint(workspace, each.name) for each in found]


def reachable_endpoints(workspace: Workspace) -> list[Endpoint]:
    """Return the endpoints; none if a bucket has no cluster that can be asked for them."""
    try:
        return list_endpoints(workspace)
    except TimonelError as error:
        if not workspace.is_remote:
            raise
        if isinstance(error, EngineError):
            _logger.warning("endpoints are not considered: %s", error.message)
        return []  # the bucket has models, whether or not there is a cluster


def used_versions(workspace: Workspace) -> dict[tuple[str, int], str]:
    """Return why each version of the workspace's models that an endpoint uses is needed."""
    found = {}
    for endpoint in reachable_endpoints(workspace):
        if endpoint.folder.is_deleted:
            continue
        latest, routed = endpoint.revision.spec, endpoint.routed
        current = latest_rollout(endpoint.folder.documents, endpoint.name)
        for spec in [latest] if routed is None else [routed.spec, latest]:
            model = spec.model.removeprefix(f"{join(workspace.uri, 'models')}/")
            versions = set(spec.traffic.versions)
            if current is not None and not current.has_ended:
                versions |= {current.rollout().base, current.rollout().to}
            for version in versions:
                share = spec.traffic.percent.get(version)
                answers = f"it answers {share} % of the endpoint {endpoint.name}"
                used = f"the endpoint {endpoint.name} uses it"
                found[model, version] = answers if share and spec is latest else used
    return found


def open_endpoint(workspace: Workspace, name: str) -> Endpoint:
    """Return an endpoint.

    Raises:
        NotFoundError: No such endpoint.
    """
    return Endpoint(workspace, folders.open_endpoint(documents_of(workspace), name).name)


def record(workspace: Workspace, spec: EndpointSpec, cause: str, after: int | None) -> Revision:
    """Add a revision, and start the control plane if it does not run.

    Args:
        workspace: The workspace.
        spec: The new specification.
        cause: Command that created it.
        after: Number of the revision to replace; None for a new endpoint.

    Raises:
        EngineError: Another command changed the endpoint at the same time, or the revision is
            recorded but the control plane cannot be started.
    """
    claim(workspace)
    with locked(workspace):
        folder = EndpointFolder(documents_of(workspace), spec.name)
        revision = folder.add(spec, cause, after=after or 0)
        try:
            run_control(workspace, engine_of(workspace))
        except EngineError as error:
            raise EngineError(
                f"revision {revision.number} of {spec.name} is recorded, but nothing carries it "
                f"out: {error}",
                hint="start the control plane with 'timonel endpoints start'",
            ) from error
    return revision


def start_control(workspace: Workspace) -> None:
    """Start the control plane of existing endpoints, as after a reboot, or update its image."""
    with locked(workspace):
        if list_endpoints(workspace):
            run_control(workspace, engine_of(workspace))
            update_control(workspace, engine_of(workspace))


def locked(workspace: Workspace) -> contextlib.AbstractContextManager[None]:
    """Prevent the control plane from shutting down while an endpoint changes."""
    workspace.endpoints.mkdir(mode=0o700, exist_ok=True)
    return exclusive(workspace.endpoints / folders.LOCK_FILE, timeout_s=_LOCK_TIMEOUT_S)

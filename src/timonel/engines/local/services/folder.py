"""Layout and documents of a service folder.

<services>/<name>/                 mode 0700: the specification may contain secrets
  service.json                     service document: the request, written by commands
  status.json                      service-status document, written by the supervisor
  supervisor.lock                  locked while the supervisor or its guard lives; its modification
                                   time is the supervisor's heartbeat, on the monotonic clock
  supervisor.log                   output of the supervisor
  replicas/<replica>/log           output of all starts of a replica
  replicas/<replica>/process.json  process of the last start, written by that process
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from timonel.engines.coordination.rollout import Replica
from timonel.engines.local.folders import checked
from timonel.engines.service_spec import ServiceSpec, ServiceState, ServiceStatus
from timonel.errors import EngineError, NotFoundError, SpecError
from timonel.processes.tree import Identity, own_identity
from timonel.storage import is_held, read_document, write_document
from timonel.storage.atomic import aside_name

DOWN = "no supervisor runs, because it was killed or the machine was rebooted"
HEARTBEAT_S = 1.0
_SILENT_S = 5.0
"""Age of the heartbeat from which the supervisor counts as stopped or hung."""
_REVISIONS = 100
"""Number of applied revisions whose contents are remembered."""


class ServiceRequest(BaseModel):
    """Content of ``service.json``.

    Attributes:
        spec: Specification that was applied last.
        replicas: Requested number of replicas.
        templates: Digest of the specification of each revision, the last applied at the end.
        deleting: Whether the service is to be deleted.
    """

    model_config = ConfigDict(frozen=True)

    spec: ServiceSpec
    replicas: int
    templates: Mapping[int, str]
    deleting: bool = False

    @classmethod
    def first(cls, spec: ServiceSpec) -> ServiceRequest:
        """Return the request of a new service."""
        replicas = 1 if spec.replicas is None else spec.replicas
        return cls(spec=spec, replicas=replicas, templates={spec.revision: spec.template})

    def applied(self, spec: ServiceSpec) -> ServiceRequest:
        """Return this request after a specification was applied."""
        if self.templates.get(spec.revision, spec.template) != spec.template:
            raise SpecError(
                f"revision {spec.revision} of {spec.name} was applied with other contents",
                hint="apply the change as another revision",
            )
        others = [item for item in self.templates.items() if item[0] != spec.revision]
        update = {
            "spec": spec,
            "replicas": self.replicas if spec.replicas is None else spec.replicas,
            "templates": dict([*others[1 - _REVISIONS :], (spec.revision, spec.template)]),
        }
        return self.model_copy(update=update)


class ServiceRecord(BaseModel):
    """Content of ``status.json``, published before a process is started or signalled.

    Attributes:
        supervisor: Identity of the supervisor, as JSON.
        number: Number of the last created replica.
        specs: Specifications of all replicas, by template.
        replicas: All replicas, oldest first.
    """

    model_config = ConfigDict(frozen=True)

    supervisor: dict[str, int | str] | None = None
    number: int = 0
    specs: dict[str, ServiceSpec] = {}
    replicas: tuple[Replica, ...] = ()


@dataclass(frozen=True)
class ServiceFolder:
    """Paths and documents in a service folder."""

    root: Path

    @property
    def supervisor_log(self) -> Path:
        """File of the supervisor's own output."""
        return self.root / "supervisor.log"

    @property
    def supervisor_lock(self) -> Path:
        """Lock file of the supervisor and its guard."""
        return self.root / "supervisor.lock"

    @property
    def is_supervised(self) -> bool:
        """Whether the supervisor or its guard is alive."""
        return is_held(self.supervisor_lock)

    @property
    def token(self) -> str:
        """Mark of all processes of the service."""
        return f"service {self.root}"

    def replica_dir(self, name: str) -> Path:
        """Return the folder of a replica, in which it runs."""
        return self.root / "replicas" / name

    def replica_log(self, name: str) -> Path:
        """Return the file of a replica's output."""
        return self.replica_dir(name) / "log"

    def write_request(self, request: ServiceRequest) -> None:
        """Record what is requested."""
        write_document(self.root / "service.json", "service", request.model_dump(mode="json"))

    def read_request(self) -> ServiceRequest:
        """Return what is requested."""
        path = self.root / "service.json"
        try:
            body = read_document(path, "service")
        except NotFoundError:
            raise unknown_service(self.root.name) from None
        with checked(path, "service"):
            return ServiceRequest.model_validate(body)

    def write_record(self, record: ServiceRecord) -> None:
        """Publish the state of the replicas."""
        write_document(self.root / "status.json", "service-status", record.model_dump(mode="json"))

    def read_record(self) -> ServiceRecord:
        """Return the state of the replicas; empty before a supervisor runs."""
        path = self.root / "status.json"
        try:
            body = read_document(path, "service-status")
        except NotFoundError:
            return ServiceRecord()
        with checked(path, "service"):
            return ServiceRecord.model_validate(body)

    def write_process(self, name: str, attempt: int) -> None:
        """Record this process as a start of a replica."""
        aside = self.replica_dir(name) / aside_name("process.json")
        aside.write_text(json.dumps({"attempt": attempt, **own_identity().as_json()}))
        aside.replace(self.replica_dir(name) / "process.json")

    def process_of(self, replica: Replica) -> Identity | None:
        """Return the process of a replica's last start; None if it did not start."""
        try:
            body = json.loads((self.replica_dir(replica.name) / "process.json").read_text())
        except (OSError, ValueError):
            return None
        is_last = isinstance(body, dict) and body.get("attempt") == replica.attempt
        return Identity.from_json(body) if is_last else None

    def beat(self) -> None:
        """Record that the supervisor works."""
        # Not the time of day: a change of the clock must not look like silence.
        now_ns = time.monotonic_ns()
        os.utime(self.supervisor_lock, ns=(now_ns, now_ns))

    def check_supervisor(self, record: ServiceRecord) -> None:
        """Check that the recorded supervisor works, if it lives: the guard replaces a dead one."""
        supervisor = Identity.from_json(record.supervisor)
        if supervisor is None or not supervisor.is_alive:
            return
        try:
            silent_s = time.monotonic() - self.supervisor_lock.stat().st_mtime
        except FileNotFoundError:
            return  # the service was removed
        if silent_s > _SILENT_S:
            pid = supervisor.pid
            raise EngineError(
                f"the supervisor of {self.root.name} (process {pid}) has not answered for "
                f"{silent_s:.0f} s",
                hint=f"continue it with 'kill -CONT {pid}', or replace it with 'kill -KILL {pid}'; "
                "the replicas keep running",
            )

    def status(self) -> ServiceStatus:
        """Return the current status; without a working supervisor, only live processes count."""
        is_supervised = self.is_supervised
        request, record = self.read_request(), self.read_record()
        state = ServiceState.DELETING if request.deleting else ServiceState.ACTIVE
        message, replicas = None, record.replicas
        if not is_supervised:
            state, message = ServiceState.DOWN, DOWN
        else:
            try:
                self.check_supervisor(record)
            except EngineError as error:
                state, message = ServiceState.UNRESPONSIVE, str(error)
        if message is not None:
            replicas = tuple(self._unsupervised(replica) for replica in replicas)
        return ServiceStatus(
            name=request.spec.name,
            revision=request.spec.revision,
            digest=request.spec.digest,
            state=state,
            requested=request.replicas,
            replicas=tuple(replica.status() for replica in replicas),
            message=message,
        )

    def _unsupervised(self, replica: Replica) -> Replica:
        process = self.process_of(replica)
        if replica.has_process and process is not None and process.is_alive:
            return replica
        return replica.model_copy(update={"state": "lost", "addresses": {}})

    def remove_replica(self, name: str) -> None:
        """Remove the folder of a replica."""
        shutil.rmtree(self.replica_dir(name), ignore_errors=True)

    def remove(self) -> None:
        """Remove the service; it disappears at once."""
        aside = self.root.with_name(aside_name(self.root.name))
        self.root.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def unknown_service(name: str) -> NotFoundError:
    """Return the error for an unknown service."""
    return NotFoundError(f"no such service: {name}", hint="apply it first")

"""Local service engine: services as processes of this machine, with supervisors."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from timonel.engines.local.admission import check_service_admission
from timonel.engines.local.folders import is_folder, readable
from timonel.engines.local.guard import start_daemon
from timonel.engines.local.services.folder import ServiceFolder, ServiceRequest, unknown_service
from timonel.engines.logs import LogTail, follow_logs, read_logs
from timonel.engines.service_spec import ServiceSpec, ServiceStatus
from timonel.engines.services import ServiceEngine
from timonel.errors import EngineError, NotFoundError, SpecError
from timonel.processes.tree import Identity
from timonel.storage import Workspace, exclusive, publish_dir
from timonel.storage.atomic import sweep
from timonel.storage.document_store import FolderDocuments

_LOCK_TIMEOUT_S = 120.0
_DAEMON = "timonel.engines.local.services.daemon"


class LocalServiceEngine(ServiceEngine):
    """Runs services on this machine, with one supervisor process per service.

    All state is in the service folders: several processes may use the engine at once, and services
    continue after they exit. For processes of one user on one machine.

    Args:
        services_dir: Folder of the service folders.
    """

    name = "local"
    is_one_machine = True

    def __init__(self, services_dir: Path) -> None:
        self._services_dir = Path(services_dir).absolute()

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """Return the engine of a workspace's services."""
        return cls(workspace.services)

    def apply(self, spec: ServiceSpec) -> None:
        """Create a service or change it; return when its supervisor knows."""
        check_service_admission(spec)
        folder = ServiceFolder(self._services_dir / spec.name)
        with self._locked(spec.name):
            if not folder.root.exists():
                self._create(folder, spec)
                return
            before = _unless_deleting(folder)
            _record(folder, before, before.applied(spec))

    def scale(self, name: str, replicas: int) -> None:
        """Set the number of replicas; return when the supervisor knows."""
        if replicas < 0:
            raise SpecError(f"expected 0 or more replicas of {name}, got {replicas}")
        folder = self._folder(name)
        with self._locked(name):
            before = _unless_deleting(folder)
            _record(folder, before, before.model_copy(update={"replicas": replicas}))

    def service(self, name: str) -> ServiceStatus:
        """Return the current status of a service."""
        return self._folder(name).status()

    def services(self) -> list[ServiceStatus]:
        """Return the status of every service, by name; unreadable ones are skipped and logged."""
        return list(
            readable(
                self._services_dir,
                "service.json",
                "service",
                lambda path: ServiceFolder(path).status(),
            )
        )

    def logs(self, name: str, replica: str, *, follow: bool = False) -> Iterator[str]:
        """Yield lines of a replica's output, oldest first."""
        folder = self._folder(name)
        known = _replicas(folder)
        if replica not in known:
            raise NotFoundError(
                f"{name} has no replica {replica}",
                hint=f"its replicas: {', '.join(known) or 'none'}",
            )
        tails = [LogTail(replica, folder.replica_log(replica))]

        def is_over() -> bool:
            try:
                return replica not in _replicas(folder)
            except NotFoundError:
                return True

        lines = follow_logs(tails, is_over) if follow else read_logs(tails)
        return (line.text for line in lines)

    def delete(self, name: str) -> None:
        """Request the end of a service; return when the supervisor knows."""
        folder = self._folder(name)
        with self._locked(name):
            before = folder.read_request()
            _record(folder, before, before.model_copy(update={"deleting": True}))

    def documents(self, folder: str) -> FolderDocuments:
        """Return the documents in a folder of the workspace."""
        return FolderDocuments(self._services_dir.parent / folder)

    def _create(self, folder: ServiceFolder, spec: ServiceSpec) -> None:
        sweep(self._services_dir)
        with publish_dir(folder.root) as aside:
            aside.chmod(0o700)
            ServiceFolder(aside).write_request(ServiceRequest.first(spec))
        try:
            _start_supervisor(folder)
        except EngineError:
            shutil.rmtree(folder.root, ignore_errors=True)
            raise

    def _folder(self, name: str) -> ServiceFolder:
        if not is_folder(self._services_dir, name):
            raise unknown_service(name)
        return ServiceFolder(self._services_dir / name)

    def _locked(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Lock out other commands of a service, which would start a second supervisor."""
        return exclusive(self._services_dir / ".locks" / name, timeout_s=_LOCK_TIMEOUT_S)


def _unless_deleting(folder: ServiceFolder) -> ServiceRequest:
    request = folder.read_request()
    if request.deleting:
        raise EngineError(
            f"the service {folder.root.name} is being deleted", hint="wait until it is gone"
        )
    return request


def _record(folder: ServiceFolder, before: ServiceRequest, request: ServiceRequest) -> None:
    """Record a request, and have a supervisor fulfil it."""
    is_supervised = folder.is_supervised
    supervisor = None
    if is_supervised:
        record = folder.read_record()
        folder.check_supervisor(record)
        supervisor = Identity.from_json(record.supervisor)
    if request != before:
        folder.write_request(request)
    if not is_supervised:
        _start_supervisor(folder)
    elif supervisor is not None:
        # One that has just started and is not recorded yet reads the request anyway.
        supervisor.signal(signal.SIGUSR1)


def _start_supervisor(folder: ServiceFolder) -> None:
    start_daemon(_DAEMON, folder.root, folder.supervisor_log, "service")


def _replicas(folder: ServiceFolder) -> list[str]:
    return [replica.name for replica in folder.status().replicas]

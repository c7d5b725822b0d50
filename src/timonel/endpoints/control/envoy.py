"""Where Envoy runs: as a service of its own on one machine, or beside each control plane."""

from __future__ import annotations

import abc
import time
from collections.abc import Iterable
from pathlib import Path

from timonel.endpoints.control.service import apply_current
from timonel.endpoints.gateway.process import SERVICE, Admin, admin_socket, gateway_service
from timonel.engines import ReplicaStatus, ServiceEngine, ServiceStatus

_UPTIME = "server.uptime"
_LIVE = "server.live"


class EnvoyProcess(abc.ABC):
    """Starts and finds the Envoy processes that this control plane configures."""

    @abc.abstractmethod
    def observe(self, services: Iterable[ServiceStatus]) -> None:
        """Look at it once per turn, given the services of the engine."""

    @property
    @abc.abstractmethod
    def is_running(self) -> bool:
        """Whether nothing has to be started."""

    @property
    @abc.abstractmethod
    def ready(self) -> tuple[ReplicaStatus, ...]:
        """Processes that accept requests, with the address ``ready``."""

    @abc.abstractmethod
    def start(self, bootstrap: Path) -> None:
        """Start it with a bootstrap configuration."""


class EnvoyService(EnvoyProcess):
    """Envoy as a service of the engine, which restarts it."""

    def __init__(self, engine: ServiceEngine, sockets: Path) -> None:
        self._engine = engine
        self._sockets = sockets
        self._service: ServiceStatus | None = None

    def observe(self, services: Iterable[ServiceStatus]) -> None:
        """Find its service."""
        self._service = next((each for each in services if each.name == SERVICE), None)

    @property
    def is_running(self) -> bool:
        """Whether its service runs."""
        return self._service is not None and self._service.is_running

    @property
    def ready(self) -> tuple[ReplicaStatus, ...]:
        """Replicas of its service that are ready."""
        return () if self._service is None else self._service.ready

    def start(self, bootstrap: Path) -> None:
        """Apply its service."""
        for socket in self._sockets.glob("admin-*.sock"):
            socket.unlink(missing_ok=True)  # of earlier processes
        apply_current(self._engine, gateway_service(bootstrap, self._sockets))


class EnvoySidecar(EnvoyProcess):
    """Envoy as the sidecar of this process, started by the engine with `gateway.sidecar`.

    Args:
        port: Port that answers when Envoy is ready.
    """

    def __init__(self, sockets: Path, port: int) -> None:
        self._admin = Admin.at(admin_socket(sockets, str(port)))
        self._address = f"127.0.0.1:{port}"
        self._uptime = 0.0
        self._starts = 0
        self._since = 0.0
        self._is_live = False
        self._is_started = False

    def observe(self, services: Iterable[ServiceStatus]) -> None:
        """Ask its admin socket; a shorter uptime is that of another process."""
        del services
        found = self._admin.stats(rf"^({_UPTIME}|{_LIVE})$")
        self._is_live = found is not None and bool(found.get(_LIVE))
        if found is None or not self._is_live:
            return
        if not self._starts or found[_UPTIME] < self._uptime:
            self._starts += 1
            self._since = time.time() - found[_UPTIME]
        self._uptime = found[_UPTIME]

    @property
    def is_running(self) -> bool:
        """Whether its bootstrap configuration was written; the engine does the rest."""
        return self._is_started

    @property
    def ready(self) -> tuple[ReplicaStatus, ...]:
        """The process, if it is live."""
        if not self._is_live:
            return ()
        return (
            ReplicaStatus(
                name="envoy",
                revision=1,
                state="ready",
                addresses={"ready": self._address},
                restarts=self._starts - 1,
                since=self._since,
            ),
        )

    def start(self, bootstrap: Path) -> None:
        """Take note that its bootstrap configuration is there, which it waits for."""
        del bootstrap
        # Where only the control plane has ended, its gateway goes on.
        self._admin.undrain()
        self._is_started = True

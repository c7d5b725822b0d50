"""The gateway from the control plane's side: configure and observe Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from timonel.endpoints.control.envoy import EnvoyProcess
from timonel.endpoints.control.samples import replica_key
from timonel.endpoints.gateway.files import ConfigFiles
from timonel.endpoints.gateway.parts import (
    PROTOCOLS,
    EndpointRoute,
    Places,
    cluster_name,
    endpoint_of,
    table_name,
)
from timonel.endpoints.gateway.process import Admin, admin_socket, authorities
from timonel.endpoints.gateway.xds import bootstrap, files
from timonel.engines import ReplicaStatus, ServiceStatus

_MAX_CONNECTIONS = 50_000
_STORED = "_routes"
"""File with all routes, for the next control plane."""
_ROUTES = TypeAdapter(list[EndpointRoute])
_REFUSALS = r"^(cluster_manager\.cds|http\..+\.rds\..+|cluster\..+)\.update_(rejected|failure)$"
_NEW_S = 10.0
_SETTLE_S = 2.0
"""Time in which Envoy reads a changed file, where it cannot be asked."""


class Gateway:
    """The Envoy processes of a workspace.

    Args:
        sockets: Folder of Unix sockets.
    """

    def __init__(self, process: EnvoyProcess, config: Path, sockets: Path) -> None:
        self.activator_socket = sockets / "activator.sock"
        self._process = process
        self._sockets = sockets
        self._places = Places(config, self.activator_socket, authorities())
        self._files = ConfigFiles(config)
        self._routes: dict[str, EndpointRoute] = {}
        # What another release wrote may be unreadable.
        with contextlib.suppress(ValidationError):
            stored = self._files.read(_STORED).get("routes", [])
            self._routes = {each.spec.name: each for each in _ROUTES.validate_python(stored)}
        self._is_written = False
        """Whether this release has written these routes."""
        self._refusals: dict[str, dict[str, int]] = {}
        self._refused: set[str] = set()

    def route(self, endpoint: str) -> EndpointRoute | None:
        """Return what was written of an endpoint last, also by an earlier process."""
        return self._routes.get(endpoint)

    def write(self, routes: Sequence[EndpointRoute]) -> None:
        """Write the configuration."""
        named = {each.spec.name: each for each in routes}
        if self._is_written and named == self._routes:
            return
        self._is_written = False
        stored = {_STORED: {"routes": _ROUTES.dump_python(list(routes), mode="json")}}
        self._files.write(files(routes, self._places) | stored)
        self._routes, self._is_written = named, True
        self._refused.clear()

    async def run(self) -> None:
        """Start Envoy unless it runs."""
        if not self._process.is_running:
            path = self._files.write_bootstrap(bootstrap(self._places, _MAX_CONNECTIONS))
            await asyncio.to_thread(self._process.start, path)

    @property
    def admins(self) -> dict[str, Admin]:
        """Admin interfaces by start of a process, whose counters begin at zero."""
        return {replica_key(each): self._admin(each) for each in self._process.ready}

    @property
    def is_ready(self) -> bool:
        """Whether Envoy accepts requests with the configuration of this process."""
        return self._is_written and bool(self._process.ready)

    def drain(self) -> None:
        """Let Envoy close each connection after its next response."""
        for admin in self.admins.values():
            admin.drain()

    def active(self, what: Literal["rq", "cx"]) -> int:
        """Return the requests in flight, or open connections; zero if Envoy does not answer."""
        pattern = rf"^http\.routes-.*\.downstream_{what}_active$"
        found = (admin.stats(pattern) or {} for admin in self.admins.values())
        return sum(int(count) for counts in found for count in counts.values())

    def knows(self, service: ServiceStatus) -> bool:
        """Return whether Envoy knows a ready replica of a service."""
        for admin in self.admins.values():
            hosts = [admin.healthy_hosts(cluster_name(service.name, each)) for each in PROTOCOLS]
            if all(each is not None and each > 1 for each in hosts):
                return True  # the activator counts as one
            if None in hosts:
                # Without its admin socket, Envoy still reads its files within a moment.
                return any(time.time() - each.since > _SETTLE_S for each in service.ready)
        return False

    def applies(self, endpoint: str, peers: Mapping[str, Admin]) -> bool:
        """Return whether all Envoys that answer have the routes of an endpoint that are written."""
        name = table_name(endpoint)
        written = self._files.version(name)
        if written is None or not self.admins:
            return False
        found = [each.table_version(name) for each in (self.admins | dict(peers)).values()]
        return all(version in {None, written} for version in found) and written in found

    def rejected(self) -> dict[str, str]:
        """Return why Envoy does not listen for endpoints, by name, and let it try again.

        An address may be in use, by another program or by a former listener that ends.
        """
        found = {
            endpoint_of(listener): reason
            for admin in self.admins.values()
            for listener, reason in admin.rejected().items()
        }
        if found:
            self._files.rewrite("listeners")
        return found

    def refused(self) -> set[str]:
        """Return the parts of the latest configuration that Envoy does not accept.

        It keeps the former ones, so the endpoints do not behave as they are specified.
        """
        for replica in self._process.ready:
            key, found = replica_key(replica), self._admin(replica).stats(_REFUSALS)
            if found is None:
                continue
            # What an older process refused before belongs to another configuration.
            is_new = time.time() - replica.since < _NEW_S
            before = self._refusals.get(key, {} if is_new else found)
            self._refused |= {name for name in found if found[name] > before.get(name, 0)}
            self._refusals[key] = found
        return self._refused

    def _admin(self, replica: ReplicaStatus) -> Admin:
        port = replica.addresses["ready"].rpartition(":")[2]
        return Admin.at(admin_socket(self._sockets, port))

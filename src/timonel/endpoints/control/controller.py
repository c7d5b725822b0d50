"""Control plane: brings services, gateway and replicas to what endpoints specify.

One process with one event loop: the activator answers while the loop waits. All state is in the
folders of endpoints and services; a new process continues where another one was killed, and
traffic goes on in the meantime.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from timonel.endpoints.control.activator import Activator
from timonel.endpoints.control.faults import Faults
from timonel.endpoints.control.keys import ApiKeys
from timonel.endpoints.control.plan import Plan, has_ready, initial_replicas, plan, route
from timonel.endpoints.control.rollouts import Rollouts, View
from timonel.endpoints.control.samples import replica_key, samples
from timonel.endpoints.control.scaling import Scaler
from timonel.endpoints.control.scrape import Load, LoadReader
from timonel.endpoints.control.service import SERVICE, apply_current
from timonel.endpoints.control.warm import SERVICE as WARM
from timonel.endpoints.control.warm import uses_tensorflow, warm_environment, warm_service
from timonel.endpoints.folder import (
    EndpointFolder,
    EndpointStatus,
    Revision,
    VersionStatus,
    list_endpoints,
)
from timonel.endpoints.gateway import process as gateway
from timonel.endpoints.gateway.access import configured_keys
from timonel.endpoints.gateway.files import ConfigFiles
from timonel.endpoints.gateway.parts import PROTOCOLS, Places, Route
from timonel.endpoints.gateway.xds import bootstrap, files
from timonel.endpoints.spec import service_name
from timonel.engines import ServiceEngine, ServiceState, ServiceStatus
from timonel.errors import NotFoundError
from timonel.storage import Workspace, exclusive

_PERIOD_S = 0.1
_HELD_PERIOD_S = 0.02
"""Period while requests wait for a replica."""
_SETTLE_S = 2.0
"""Time from a change of the traffic to the end of replicas that get none."""
_SCRAPE_S = 1.0
_STATUS_S = 2.0
_MAX_CONNECTIONS = 50_000

logger = logging.getLogger(__name__)


class Endpoint:
    """What the control plane remembers of an endpoint."""

    def __init__(self, folder: EndpointFolder) -> None:
        self.folder = folder
        self.status = folder.status()
        self.revisions: list[Revision] = []
        self.scalers: dict[int, Scaler] = {}
        self.is_warmed = False
        self.obsolete: dict[str, float] = {}
        self.plan: Plan | None = None
        self.faults = Faults(folder.name)
        self.keys = ApiKeys(None)

    def refresh(self, workspace: Workspace) -> None:
        """Read new revisions."""
        known = len(self.revisions)
        self.revisions += [self.folder.revision(n) for n in self.folder.numbers()[known:]]
        if len(self.revisions) > known:
            self.is_warmed = uses_tensorflow(self.latest.spec, workspace)

    def scaler(self, version: int, now: float, ready: int) -> Scaler:
        """Return an autoscaler of a version that goes on where an earlier one ended."""
        saved = None
        with self.faults.of("autoscaler"):
            saved = self.folder.autoscaler(version)
        spec = self.latest.spec
        made = Scaler(spec.scaling, now, ready, saved)
        learned = [each.pattern for each in self.scalers.values() if each.pattern is not None]
        if learned:
            # The load of the endpoint recurs, whatever its version.
            made.expect(learned[-1], spec.traffic.percent.get(version, 0) / 100)
        return made

    @property
    def latest(self) -> Revision:
        """The latest revision."""
        return self.revisions[-1]

    @property
    def routed(self) -> Revision | None:
        """The revision whose traffic applies."""
        found = (each for each in self.revisions if each.number == self.status.routed)
        return next(found, None)


class Controller:
    """Runs the endpoints of a workspace until the last one is deleted.

    Args:
        workspace: The workspace.
        engine: Engine of the services.
        sockets: Folder of Unix sockets.
    """

    def __init__(self, workspace: Workspace, engine: ServiceEngine, sockets: Path) -> None:
        self._workspace = workspace
        self._engine = engine
        self._sockets = sockets
        self._places = Places(workspace.endpoints / "gateway", sockets / "activator.sock")
        self._files = ConfigFiles(self._places.config)
        self._endpoints: dict[str, Endpoint] = {}
        self._services: dict[str, ServiceStatus] = {}
        self._reader = LoadReader()
        self._rollouts = Rollouts()
        self._wake = asyncio.Event()
        self._rejected: dict[str, str] = {}
        self._faults = Faults("gateway")
        self._scraped_at = self._published_at = 0.0
        self.activator = Activator(self._on_hold)
        self.activator_socket = self._places.activator

    async def run(self) -> None:
        """Run until there is no endpoint left."""
        while True:
            self._wake.clear()
            is_last = False
            with self._faults.of("turn"):
                is_last = not await self._turn()
            if is_last:
                return
            period_s = _HELD_PERIOD_S if self.activator.held else _PERIOD_S
            try:
                async with asyncio.timeout(period_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _on_hold(self, service: str) -> None:
        for name, endpoint in self._endpoints.items():
            for version, scaler in endpoint.scalers.items():
                if service_name(name, version) == service:
                    scaler.hasten(time.time())
                    self._wake.set()

    async def _turn(self) -> bool:
        """Look once, and change what is not as it should be; return whether endpoints are left."""
        now = time.time()
        self._services = {
            each.name: each for each in await asyncio.to_thread(self._engine.services)
        }
        self._find_endpoints()
        for endpoint in list(self._endpoints.values()):
            with endpoint.faults.of("apply"):
                await self._apply(endpoint, now)
        # With a full disk, say, Envoy goes on with what it has.
        with self._faults.of("files"):
            self._write_gateway(now)
        if not self._endpoints and await asyncio.to_thread(self._end):
            return False
        with self._faults.of("gateway"):
            await self._run_gateway()
        if now - self._scraped_at >= _SCRAPE_S or now < self._scraped_at:
            self._scraped_at = now
            await self._scrape(now)
            with self._faults.of("rollouts"):
                await self._roll(now)
        for endpoint in self._endpoints.values():
            with endpoint.faults.of("scale"):
                await self._scale(endpoint, now)
            await self._save(endpoint, now)
        await self._release()
        if now - self._published_at >= _STATUS_S or now < self._published_at:
            self._published_at = now
            self._rejected = await asyncio.to_thread(self._rejected_listeners)
            for endpoint in self._endpoints.values():
                with endpoint.faults.of("status"):
                    endpoint.folder.write_status(self._status(endpoint, now))
        return True

    def _find_endpoints(self) -> None:
        found = {folder.name: folder for folder in list_endpoints(self._workspace.endpoints)}
        for name in self._endpoints.keys() - found.keys():
            del self._endpoints[name]
        for name, folder in found.items():
            if name not in self._endpoints:
                self._endpoints[name] = endpoint = Endpoint(folder)
                endpoint.keys = ApiKeys(configured_keys(self._files.read("listeners"), name))

    async def _apply(self, endpoint: Endpoint, now: float) -> None:
        """Create, change and delete the services of an endpoint."""
        name = endpoint.folder.name
        own = {key: each for key, each in self._services.items() if key.startswith(f"{name}-v")}
        if endpoint.folder.is_deleted:
            endpoint.plan = None
            await self._delete(own)
            if not own:
                endpoint.folder.remove()
                del self._endpoints[name]
            return
        endpoint.refresh(self._workspace)
        env = warm_environment(self._sockets)
        planned = plan(endpoint.revisions, endpoint.status, own, self._workspace.uri, env)
        endpoint.plan = planned
        changed = (planned.routed, planned.proved) != (
            endpoint.status.routed,
            endpoint.status.proved,
        )
        endpoint.status = endpoint.status.model_copy(
            update={"routed": planned.routed, "proved": planned.proved, "message": planned.message}
        )
        if changed:
            logger.info("%s: revision %d gets the traffic", name, planned.routed)
            endpoint.folder.write_status(self._status(endpoint, now))
        for version, spec in planned.services.items():
            before = own.get(spec.name)
            if before is None:
                size = initial_replicas(endpoint.latest.spec, version, own)
                await asyncio.to_thread(
                    self._engine.apply, spec.model_copy(update={"replicas": size})
                )
            elif before.state is ServiceState.DELETING:
                continue  # created anew once it is gone
            elif before.state is not ServiceState.ACTIVE or before.revision != spec.revision:
                await asyncio.to_thread(self._engine.apply, spec)
        names = {spec.name for spec in planned.services.values()}
        await self._delete_obsolete(endpoint, {k: s for k, s in own.items() if k not in names}, now)
        self._find_scalers(endpoint, planned, own, now)

    def _find_scalers(
        self, endpoint: Endpoint, planned: Plan, own: dict[str, ServiceStatus], now: float
    ) -> None:
        spec = endpoint.latest.spec
        for version in endpoint.scalers.keys() - planned.services.keys():
            del endpoint.scalers[version]
        for version in planned.services:
            if version not in endpoint.scalers:
                service = own.get(service_name(endpoint.folder.name, version))
                ready = 0 if service is None else len(service.ready)
                endpoint.scalers[version] = endpoint.scaler(version, now, ready)
            endpoint.scalers[version].configure(spec.scaling)
        endpoint.folder.remove_autoscalers(planned.services)

    async def _delete_obsolete(
        self, endpoint: Endpoint, services: dict[str, ServiceStatus], now: float
    ) -> None:
        """Delete services without traffic, once Envoy has had the time to notice."""
        known = endpoint.obsolete
        endpoint.obsolete = {name: min(now, known.get(name, now)) for name in services}
        due = [name for name, since in endpoint.obsolete.items() if now - since >= _SETTLE_S]
        await self._delete({name: services[name] for name in due})

    async def _delete(self, services: dict[str, ServiceStatus]) -> None:
        for name, service in services.items():
            if service.state is not ServiceState.DELETING:
                await asyncio.to_thread(self._engine.delete, name)

    def _routes(self, now: float) -> list[Route]:
        routes = []
        for endpoint in self._endpoints.values():
            if endpoint.plan is None or endpoint.routed is None:
                continue
            spec, traffic = endpoint.latest.spec, endpoint.routed.spec.traffic
            keys: Mapping[str, str] = {}
            if spec.access.api_keys is not None:
                with endpoint.faults.of("keys"):
                    endpoint.keys.refresh(Path(spec.access.api_keys), now)
                if endpoint.keys.current is None:
                    continue
                keys = endpoint.keys.current
            routes.append(replace(route(spec, traffic, self._services), api_keys=keys))
        return routes

    def _write_gateway(self, now: float) -> None:
        routes = self._routes(now)
        self._files.write(files(routes, self._places))
        self.activator.configure(
            {
                service_name(each.spec.name, version): (
                    each.spec.limits.max_held,
                    each.spec.limits.timeout_s,
                )
                for each in routes
                for version in each.ready
            }
        )

    async def _run_gateway(self) -> None:
        """Start Envoy and the warm zygote."""
        # One whose supervisor does not answer still works.
        states = (ServiceState.ACTIVE, ServiceState.UNRESPONSIVE)
        running = {name for name, each in self._services.items() if each.state in states}
        if gateway.SERVICE not in running:
            path = self._files.write_bootstrap(bootstrap(self._places, _MAX_CONNECTIONS))
            spec = gateway.gateway_service(path, self._sockets)
            await asyncio.to_thread(apply_current, self._engine, spec)
        is_needed = any(endpoint.is_warmed for endpoint in self._endpoints.values())
        if is_needed and WARM not in running:
            await asyncio.to_thread(apply_current, self._engine, warm_service(self._sockets))
        elif WARM in self._services and not is_needed:
            await self._delete({WARM: self._services[WARM]})

    async def _scrape(self, now: float) -> None:
        """Measure the load of all replicas."""
        addresses = {
            replica_key(replica): replica.addresses["http"]
            for name, service in self._services.items()
            if name not in (gateway.SERVICE, WARM, SERVICE)
            for replica in service.ready
            if "http" in replica.addresses
        }
        loads = await self._reader.read(addresses)
        for name, endpoint in self._endpoints.items():
            for version, scaler in endpoint.scalers.items():
                key = service_name(name, version)
                service = self._services.get(key)
                own = () if service is None else service.ready
                found = [loads.get(replica_key(each)) for each in own]
                known = [load for load in found if load is not None]
                total = sum(known, Load())
                if known and len(known) < len(found):
                    # Those that did not answer are taken for average.
                    scale = len(found) / len(known)
                    total = Load(total.concurrency * scale, total.rate * scale)
                if known or not found:
                    scaler.record(now, total, self.activator.held.get(key, 0))

    async def _roll(self, now: float) -> None:
        """Take a step of each rollout."""
        found = self._services.get(gateway.SERVICE)
        replicas = () if found is None else found.ready
        names = [f"{replica.name}.{replica.restarts}" for replica in replicas]
        admins = dict(zip(names, self._admins(replicas), strict=True))
        views = [
            View(each.folder, tuple(each.revisions), each.status)
            for each in self._endpoints.values()
            if each.plan is not None
        ]
        await asyncio.to_thread(self._rollouts.step, now, views, admins)

    async def _scale(self, endpoint: Endpoint, now: float) -> None:
        """Set the number of replicas of each version."""
        if endpoint.plan is None:
            return
        for version in endpoint.plan.services:
            key = service_name(endpoint.folder.name, version)
            service, scaler = self._services.get(key), endpoint.scalers[version]
            if service is None or service.state is not ServiceState.ACTIVE:
                continue
            if version not in endpoint.plan.proved:
                continue  # it keeps its first size until it has started
            held = self.activator.held.get(key, 0)
            if held and not service.requested:
                scaler.record(now, Load(), held)
            reachable = version in endpoint.latest.spec.traffic.versions
            decision = scaler.step(
                now,
                len(service.ready),
                service.requested,
                reachable=reachable,
                samples=samples(
                    now,
                    service.replicas,
                    self._reader.average,
                    scaler.policy,
                    endpoint.latest.spec.resources,
                ),
            )
            shadow = endpoint.latest.spec.traffic.shadow
            is_shadow = shadow is not None and shadow.version == version
            wanted = max(decision.replicas, 1 if held or is_shadow else 0)
            if wanted != service.requested:
                logger.info("%s: %d -> %d: %s", key, service.requested, wanted, decision.reason)
                await asyncio.to_thread(self._engine.scale, key, wanted)
                self._wake.set()

    async def _save(self, endpoint: Endpoint, now: float) -> None:
        """Save the states of autoscalers from time to time."""
        for version, scaler in endpoint.scalers.items():
            state = scaler.unsaved(now)
            if state is not None:
                with endpoint.faults.of(f"save {version}"):
                    await asyncio.to_thread(endpoint.folder.write_autoscaler, version, state)

    async def _release(self) -> None:
        """Release requests to services whose replicas Envoy knows."""
        for service in self.activator.held:
            if has_ready(self._services.get(service)) and await asyncio.to_thread(
                self._is_known, service
            ):
                self.activator.release(service)

    def _is_known(self, service: str) -> bool:
        found = self._services.get(gateway.SERVICE)
        return any(
            all(admin.healthy_hosts(f"{service}-{protocol}-ready") > 0 for protocol in PROTOCOLS)
            for admin in self._admins(() if found is None else found.ready)
        )

    def _rejected_listeners(self) -> dict[str, str]:
        found = self._services.get(gateway.SERVICE)
        replicas = () if found is None else found.ready
        return {k: v for each in self._admins(replicas) for k, v in each.rejected().items()}

    def _admins(self, replicas: Iterable[object]) -> list[gateway.Admin]:
        addresses = [replica.addresses["ready"] for replica in replicas]  # type: ignore[attr-defined]
        ports = [address.rpartition(":")[2] for address in addresses]
        return [gateway.Admin(self._sockets / f"admin-{port}.sock") for port in ports]

    def _status(self, endpoint: Endpoint, now: float) -> EndpointStatus:
        versions = {}
        for version, scaler in endpoint.scalers.items():
            key = service_name(endpoint.folder.name, version)
            service, load = self._services.get(key), scaler.load(now)
            replicas = () if service is None else service.replicas
            messages = [each.message for each in replicas if each.message]
            decision = scaler.decision
            versions[version] = VersionStatus(
                ready=0 if service is None else len(service.ready),
                running=len(replicas),
                wanted=0 if service is None else service.requested,
                concurrency=round(load.concurrency, 3),
                rate=round(load.rate, 3),
                held=self.activator.held.get(key, 0),
                reason="" if decision is None else decision.reason,
                message=messages[-1] if messages else None,
            )
        rejected = self._rejected.get(endpoint.folder.name)
        message = endpoint.faults.message or (endpoint.plan.message if endpoint.plan else None)
        update = {"versions": versions, "message": message, "rejected": rejected, "at": now}
        return endpoint.status.model_copy(update=update)

    def _end(self) -> bool:
        """Stop the gateway and this process, unless there is a new endpoint; return whether."""
        with exclusive(self._workspace.endpoints / ".lock"):
            if list_endpoints(self._workspace.endpoints):
                return False
            for name in (gateway.SERVICE, WARM, SERVICE):
                with contextlib.suppress(NotFoundError):
                    self._engine.delete(name)
            return True

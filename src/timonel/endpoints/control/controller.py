"""Control plane: brings services, gateway and replicas to what endpoints specify.

One process with one event loop: the activator answers while the loop waits. All state is in the
documents of endpoints and in the engine; a new process continues where another one was killed, and
traffic goes on in the meantime.

On an engine of several machines there are several, each with a gateway of its own. All of them
configure their gateway and hold requests; the one that leads changes services and documents.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from timonel.endpoints.access_documents import AccessDocuments
from timonel.endpoints.control.activator import Activator
from timonel.endpoints.control.answers import AnswerReader
from timonel.endpoints.control.endpoint import ControlledEndpoint
from timonel.endpoints.control.envoy import EnvoyProcess
from timonel.endpoints.control.exposures import Exposures
from timonel.endpoints.control.faults import Faults
from timonel.endpoints.control.gateway import Gateway
from timonel.endpoints.control.peers import Peers
from timonel.endpoints.control.plan import initial_replicas, services_by_version, start_failures
from timonel.endpoints.control.rollouts import Rollouts
from timonel.endpoints.control.samples import replica_key
from timonel.endpoints.control.scrape import ReplicaLoad
from timonel.endpoints.control.service import SERVICE, apply_current
from timonel.endpoints.control.sizing import Sizing
from timonel.endpoints.control.warm import PERIOD_S, keep_zygote
from timonel.endpoints.engine import FOLDER, LOCATION
from timonel.endpoints.folder import LOCK_FILE, list_endpoints
from timonel.endpoints.gateway.parts import Secrets
from timonel.endpoints.gateway.process import SERVICE as GATEWAY
from timonel.endpoints.spec import service_name
from timonel.engines import ServiceEngine, ServiceSpec, ServiceState, ServiceStatus
from timonel.errors import NotFoundError, ServingError
from timonel.processes.clock import SteadyClock
from timonel.storage import Workspace, exclusive

_PERIOD_S = 0.1
_HELD_PERIOD_S = 0.02
"""Period while requests wait for a replica."""
_SCRAPE_S = 1.0
_STATUS_S = 2.0
_RECENT_S = 5.0
_LEAD_S = 1.0
_UNUSED_S = 30.0
"""Time without endpoints after which an engine of several machines ends the control plane."""

logger = logging.getLogger(__name__)


class EndpointController:
    """Runs the endpoints of a workspace until the last one is deleted.

    Args:
        host: Address of this process for others of the same service; empty without others.
    """

    def __init__(
        self,
        workspace: Workspace,
        engine: ServiceEngine,
        envoy: EnvoyProcess,
        gateway: Gateway,
        *,
        host: str = "",
    ) -> None:
        self._workspace = workspace
        self._engine = engine
        self._documents = engine.documents(FOLDER)
        self._envoy = envoy
        self._gateway = gateway
        self._peers = Peers(host)
        self._leads = False
        self._led_at = -math.inf
        self._exposures = Exposures(engine)
        self._unused_since: float | None = None
        self._endpoints: dict[str, ControlledEndpoint] = {}
        self._services: dict[str, ServiceStatus] = {}
        self._rollouts = Rollouts()
        self._answers = AnswerReader()
        # Decisions do not depend on changes of the clock.
        self._clock = SteadyClock()
        self._wake = asyncio.Event()
        self._rejected: dict[str, str] = {}
        self._faults = Faults("gateway")
        self._scraped_at = self._published_at = self._warmed_at = 0.0
        self.activator = Activator(self._on_hold)
        self._sizing = Sizing(engine, self.activator, self._peers)
        self.activator_socket = self._gateway.activator_socket

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

    def recent_loads(self) -> dict[str, dict[int, ReplicaLoad | None]]:
        """Return the load of the last seconds by endpoint and version."""
        now = self._clock()
        return {
            name: {v: scaler.recent_load(now, _RECENT_S) for v, scaler in each.scalers.items()}
            for name, each in self._endpoints.items()
        }

    def is_ready(self) -> bool:
        """Return whether the gateway accepts requests."""
        return self._gateway.is_ready

    def held(self) -> Mapping[str, int]:
        """Return the requests that wait here for a replica, by service."""
        return self.activator.held

    def ask_envoy(self, path: str) -> bytes | None:
        """Return the answer of Envoy's admin interface; None without one."""
        return next((admin.get(path) for admin in self._gateway.admins.values()), None)

    def _on_hold(self, service: str) -> None:
        for endpoint in self._endpoints.values():
            for version, scaler in endpoint.scalers.items():
                if service_name(endpoint.name, version) == service:
                    scaler.hasten(self._clock())
                    self._wake.set()

    async def _turn(self) -> bool:
        """Reconcile once; return whether endpoints are left."""
        now = self._clock()
        found = await asyncio.to_thread(self._engine.services)
        self._services = {each.name: each for each in found}
        await asyncio.to_thread(self._envoy.observe, found)
        self._peers.observe(self._services.get(SERVICE))
        if now - self._led_at >= _LEAD_S:
            self._led_at = now
            await self._lead()
            for endpoint in self._endpoints.values() if self._leads else ():
                with endpoint.faults.of("alias"):
                    await asyncio.to_thread(endpoint.follow)
        self._find_endpoints()
        for endpoint in list(self._endpoints.values()):
            with endpoint.faults.of("apply"):
                await self._apply(endpoint, services_by_version(endpoint.name, found), now)
        # With a full disk, say, Envoy goes on with what it has.
        with self._faults.of("files"):
            self._configure_gateway()
        if await self._is_over(now):
            return False
        with self._faults.of("gateway"):
            await self._gateway.run()
            await self._keep_zygote(now)
            await self._note_applied(now)
        if now - self._scraped_at >= _SCRAPE_S:
            self._scraped_at = now
            await self._peers.read()
            await self._sizing.measure(self._endpoints.values(), now)
            with self._faults.of("rollouts"):
                if self._leads:
                    await self._roll(time.time())
        for endpoint in self._endpoints.values():
            with endpoint.faults.of("scale"):
                await self._scale(endpoint, now)
            if self._leads:
                await self._save(endpoint, now)
        await self._release()
        if now - self._published_at >= _STATUS_S:
            self._published_at = now
            await self._report(now)
        return True

    async def _report(self, now: float) -> None:
        """Look what Envoy refuses, and publish the status of each endpoint."""
        with self._faults.of("listeners"):
            self._rejected = await asyncio.to_thread(self._gateway.rejected)
        with self._faults.of("refused"):
            if refused := await asyncio.to_thread(self._gateway.refused):
                raise ServingError(f"Envoy refuses {', '.join(sorted(refused))}")
        for endpoint in self._endpoints.values() if self._leads else ():
            await self._publish(endpoint, now)

    async def _lead(self) -> None:
        """Find out whether this process leads; a new leader takes over what is saved."""
        before, self._leads = self._leads, await asyncio.to_thread(self._engine.leads, SERVICE)
        if self._leads and not before:
            self._exposures.forget()
            self._sizing.autoscalers.forget()
            for endpoint in self._endpoints.values():
                endpoint.take_over()
        if before != self._leads and not self._engine.is_one_machine:
            logger.info("this control plane %s", "leads" if self._leads else "follows")

    async def _is_over(self, now: float) -> bool:
        """Return whether this process is to end, as there is no endpoint left."""
        if self._endpoints or not self._leads:
            self._unused_since = None
            return False
        if self._engine.is_one_machine:
            return await asyncio.to_thread(self._end)
        # A command may be about to make an endpoint. The engine ends this process.
        self._unused_since = self._unused_since or now
        if now - self._unused_since > _UNUSED_S:
            own = self._services.get(SERVICE)
            if own is not None and own.state is not ServiceState.DELETING:
                await asyncio.to_thread(self._documents.remove, LOCATION)
                await self._delete([own])
        return False

    def _find_endpoints(self) -> None:
        found = {folder.name: folder for folder in list_endpoints(self._documents)}
        for name in self._endpoints.keys() - found.keys():
            del self._endpoints[name]
        for name in found.keys() - self._endpoints.keys():
            before = self._gateway.route(name)
            self._endpoints[name] = ControlledEndpoint(
                found[name],
                self._workspace,
                before,
                partial(self._read_contents, name),
                str(self.activator_socket.parent) if self._engine.is_one_machine else None,
            )

    def _read_contents(self, name: str, contents: str) -> Secrets:
        return AccessDocuments.of(self._engine, name).read(contents)

    async def _apply(
        self, endpoint: ControlledEndpoint, services: Mapping[int, ServiceStatus], now: float
    ) -> None:
        """Create, change and delete the services of an endpoint."""
        if endpoint.folder.is_deleted:
            endpoint.end()
            if self._leads:
                await self._delete_endpoint(endpoint, services)
            return
        applies = endpoint.refresh(services, now)
        await endpoint.refresh_contents()
        if applies:
            logger.info("%s: revision %d gets the traffic", endpoint.name, endpoint.status.routed)
            if self._leads:
                await self._publish(endpoint, now)
        if not self._leads:
            return
        assert endpoint.plan is not None
        for version, spec in endpoint.plan.services.items():
            with endpoint.faults.of(f"apply {version}"):
                await self._apply_version(endpoint, version, spec)
        await self._delete(endpoint.obsolete(now))
        await self._exposures.expose(endpoint.latest.spec, now)

    async def _delete_endpoint(
        self, endpoint: ControlledEndpoint, services: Mapping[int, ServiceStatus]
    ) -> None:
        await self._delete(services.values())
        if not services:
            await self._exposures.conceal(endpoint.name)
            await asyncio.to_thread(endpoint.folder.remove)
            del self._endpoints[endpoint.name]

    async def _apply_version(
        self, endpoint: ControlledEndpoint, version: int, spec: ServiceSpec
    ) -> None:
        before = endpoint.services.get(version)
        if before is None:
            size = initial_replicas(endpoint.latest.spec, version, endpoint.services)
            sized = spec.model_copy(update={"replicas": size})
            await asyncio.to_thread(self._engine.apply, sized)
        elif before.state is ServiceState.DELETING:
            return  # created anew once it is gone
        elif before.state is not ServiceState.ACTIVE:
            await asyncio.to_thread(apply_current, self._engine, spec, before)
        elif before.digest != spec.digest:
            # At zero, one replica shows whether it starts.
            update = {} if before.requested else {"replicas": 1}
            sized = spec.model_copy(update=update)
            await asyncio.to_thread(apply_current, self._engine, sized, before)

    async def _delete(self, services: Iterable[ServiceStatus]) -> None:
        for service in services:
            if service.state is not ServiceState.DELETING:
                await asyncio.to_thread(self._engine.delete, service.name)

    def _configure_gateway(self) -> None:
        found = (endpoint.route(time.time()) for endpoint in self._endpoints.values())
        compared = self._rollouts.compared
        routes = [
            replace(route, compared=compared.get(route.spec.name))
            for route in found
            if route is not None
        ]
        limits = {
            service_name(each.spec.name, version): (
                each.spec.limits.max_held,
                each.spec.limits.timeout_s,
            )
            for each in routes
            for version in each.ready
        }
        self.activator.configure(limits, start_failures(self._services))
        self._gateway.write(routes)

    async def _note_applied(self, now: float) -> None:
        """Publish which revisions the gateways have; they read changed files within a moment."""
        for endpoint in self._endpoints.values() if self._leads else ():
            if endpoint.status.applied == endpoint.status.routed:
                continue
            name, peers = endpoint.name, self._peers.admins
            if await asyncio.to_thread(self._gateway.applies, name, peers):
                endpoint.note_applied()
                await self._publish(endpoint, now)

    async def _keep_zygote(self, now: float) -> None:
        """Keep the zygote of replicas running while an endpoint may start one."""
        if not self._engine.is_one_machine or now - self._warmed_at < PERIOD_S:
            return
        if any(endpoint.is_warmed for endpoint in self._endpoints.values()):
            self._warmed_at = now
            await asyncio.to_thread(keep_zygote)

    async def _roll(self, now: float) -> None:
        """Take a step of each rollout."""
        planned = [each for each in self._endpoints.values() if each.plan is not None]
        answers = await self._answers.read(
            {
                service.name: {replica_key(each): each.addresses["http"] for each in service.ready}
                for name, versions in self._rollouts.compared.items()
                if (endpoint := self._endpoints.get(name)) is not None
                for version in versions
                if (service := endpoint.services.get(version)) is not None
            }
        )
        admins = self._gateway.admins | self._peers.admins
        await asyncio.to_thread(self._rollouts.step, now, planned, admins, answers)

    async def _scale(self, endpoint: ControlledEndpoint, now: float) -> None:
        if not self._leads:
            await self._sizing.start_first(endpoint)
        elif await self._sizing.scale(endpoint, now):
            self._wake.set()

    async def _save(self, endpoint: ControlledEndpoint, now: float) -> None:
        """Save the states of autoscalers from time to time."""
        for version, scaler in endpoint.scalers.items():
            state = scaler.unsaved(now)
            if state is not None:
                with endpoint.faults.of(f"save {version}"):
                    await asyncio.to_thread(endpoint.folder.write_autoscaler, version, state)

    async def _release(self) -> None:
        """Release requests to services whose replicas Envoy knows."""
        for name in self.activator.held:
            if name not in self._services:
                continue
            # Read again: the turn may have taken a second, in which a replica has ended.
            with contextlib.suppress(NotFoundError):
                service = await asyncio.to_thread(self._engine.service, name)
                is_known = await asyncio.to_thread(self._gateway.knows, service)
                if service.ready and is_known:
                    self.activator.release(name)

    async def _publish(self, endpoint: ControlledEndpoint, now: float) -> None:
        with endpoint.faults.of("status"):
            rejected = self._rejected.get(endpoint.name)
            held, fault = self._sizing.held, self._faults.message
            await asyncio.to_thread(endpoint.publish, now, held, rejected, fault)

    def _end(self) -> bool:
        """Stop the gateway and this process, unless there is a new endpoint; return whether."""
        with exclusive(self._workspace.endpoints / LOCK_FILE):
            if list_endpoints(self._documents):
                return False
            for name in (GATEWAY, SERVICE):
                with contextlib.suppress(NotFoundError):
                    self._engine.delete(name)
            if self._engine.is_one_machine:
                shutil.rmtree(self.activator_socket.parent, ignore_errors=True)
            return True

"""How many replicas versions have: measure their load, and scale their services."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping

from timonel.endpoints.control.activator import Activator
from timonel.endpoints.control.cluster_autoscalers import ClusterAutoscalers
from timonel.endpoints.control.endpoint import ControlledEndpoint
from timonel.endpoints.control.peers import Peers
from timonel.endpoints.control.samples import replica_key, samples
from timonel.endpoints.control.scaling import Scaler
from timonel.endpoints.control.scrape import LoadReader, ReplicaLoad
from timonel.endpoints.spec import service_name
from timonel.engines import ServiceEngine, ServiceState, ServiceStatus

logger = logging.getLogger(__name__)


class Sizing:
    """Measures the load of endpoints, and sets the numbers of their replicas.

    Args:
        activator: Holds requests to versions without a replica.
    """

    def __init__(self, engine: ServiceEngine, activator: Activator, peers: Peers) -> None:
        self._engine = engine
        self._activator = activator
        self._peers = peers
        self._reader = LoadReader()
        self.autoscalers = ClusterAutoscalers(engine)

    @property
    def held(self) -> Mapping[str, int]:
        """Requests that wait for a replica, here and at other control planes, by service."""
        found = Counter(self._activator.held)
        found.update(self._peers.held)
        return found

    async def measure(self, endpoints: Collection[ControlledEndpoint], now: float) -> None:
        """Measure the load of all replicas.

        Args:
            now: The time of the autoscalers in seconds.
        """
        addresses = {
            replica_key(replica): replica.addresses["http"]
            for endpoint in endpoints
            for service in endpoint.services.values()
            for replica in service.ready
        }
        loads, held = await self._reader.read(addresses), self.held
        for endpoint in endpoints:
            for version, scaler in endpoint.scalers.items():
                service = endpoint.services.get(version)
                own = () if service is None else service.ready
                found = [loads.get(replica_key(each)) for each in own]
                known = [load for load in found if load is not None]
                total = sum(known, ReplicaLoad())
                if known and len(known) < len(found):
                    # Those that did not answer are taken for average.
                    scale = len(found) / len(known)
                    total = ReplicaLoad(total.concurrency * scale, total.rate * scale)
                if known or not found:
                    name = service_name(endpoint.name, version)
                    scaler.record(now, total, held.get(name, 0))

    async def scale(self, endpoint: ControlledEndpoint, now: float) -> bool:
        """Set the number of replicas of each version; return whether one has changed."""
        is_changed = False
        for version in endpoint.plan.services if endpoint.plan is not None else ():
            service, scaler = endpoint.services.get(version), endpoint.scalers[version]
            if service is None or service.state is not ServiceState.ACTIVE:
                self.autoscalers.forget(service_name(endpoint.name, version))
                continue
            assert endpoint.plan is not None
            if version not in endpoint.plan.proved:
                continue  # it keeps its first size until it has started
            with endpoint.faults.of(f"autoscaler of the cluster {version}"):
                await self.autoscalers.keep(service.name, scaler.policy, now)
            replicas = self._replicas(endpoint, version, service, scaler, now)
            if replicas != service.requested:
                await asyncio.to_thread(self._engine.scale, service.name, replicas)
                is_changed = True
        return is_changed

    async def start_first(self, endpoint: ControlledEndpoint) -> None:
        """Start a first replica for requests that wait here; the leader learns of them later."""
        for service in endpoint.services.values():
            if self._activator.held.get(service.name) and not service.requested:
                await asyncio.to_thread(self._engine.scale, service.name, 1)

    def _replicas(
        self,
        endpoint: ControlledEndpoint,
        version: int,
        service: ServiceStatus,
        scaler: Scaler,
        now: float,
    ) -> int:
        """Return the number of replicas that a version should have."""
        spec = endpoint.latest.spec
        held = self.held.get(service.name, 0)
        if held and not service.requested:
            scaler.record(now, ReplicaLoad(), held)
        decision = scaler.step(
            now,
            len(service.ready),
            service.requested,
            reachable=version in spec.traffic.versions,
            samples=lambda: samples(
                now, service.replicas, self._reader.average, scaler.policy, spec.resources
            ),
        )
        shadow = spec.traffic.shadow
        is_shadow = shadow is not None and shadow.version == version
        replicas = max(decision.replicas, 1 if held or is_shadow else 0)
        if replicas != service.requested:
            logger.info(
                "%s: %d -> %d: %s", service.name, service.requested, replicas, decision.reason
            )
        return replicas

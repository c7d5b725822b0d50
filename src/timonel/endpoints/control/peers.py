"""The other replicas of this control plane: what they hold, and the statistics of their Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from timonel.endpoints.control.health import ADMIN_PATH, HELD_PATH, parse_held
from timonel.endpoints.control.samples import replica_key
from timonel.endpoints.control.scrape import get
from timonel.endpoints.gateway.process import Admin
from timonel.engines import ServiceStatus


class Peers:
    """Other control planes of the same endpoints, each with an Envoy of its own.

    Args:
        host: Address of this one; empty without others.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._addresses: dict[str, str] = {}
        self._held: dict[str, int] = {}

    def observe(self, service: ServiceStatus | None) -> None:
        """Take note of the replicas of the control plane's service."""
        replicas = service.ready if service is not None and self._host else ()
        self._addresses = {
            replica_key(each): each.addresses["http"]
            for each in replicas
            if each.addresses["http"].rpartition(":")[0] != self._host
        }

    async def read(self) -> None:
        """Ask all of them; those that do not answer hold nothing."""
        answers = await asyncio.gather(
            *(get(address, HELD_PATH) for address in self._addresses.values())
        )
        self._held = {}
        for held in map(parse_held, answers):
            for service, count in held.items():
                self._held[service] = self._held.get(service, 0) + count

    @property
    def held(self) -> Mapping[str, int]:
        """Requests that they held when asked last, by service."""
        return self._held

    @property
    def admins(self) -> dict[str, Admin]:
        """Statistics of their Envoys, by start of a replica."""
        return {key: Admin.through(address, ADMIN_PATH) for key, address in self._addresses.items()}

"""Expose endpoints to clients through the engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from timonel.endpoints.control.service import SERVICE
from timonel.endpoints.spec import EndpointSpec
from timonel.engines import ServiceEngine
from timonel.errors import TimonelError

_RETRY_S = 5.0
_CHECK_S = 30.0


@dataclass(frozen=True)
class _Attempt:
    """What was exposed, when that is done again in seconds, and why it failed."""

    port: int
    has_tls: bool
    again_at: float
    error: TimonelError | None = None


class Exposures:
    """Endpoints that this process has exposed."""

    def __init__(self, engine: ServiceEngine) -> None:
        self._engine = engine
        self._last: dict[str, _Attempt] = {}

    def forget(self) -> None:
        """Expose all again: others may have changed them."""
        self._last.clear()

    async def expose(self, spec: EndpointSpec, now: float) -> None:
        """Expose an endpoint: when it changes, 5 s after a failure, and again every 30 s.

        The last restores what somebody deleted or edited.

        Args:
            now: Time in seconds, of any steady clock.
        """
        port, has_tls = spec.port, spec.access.tls is not None
        last = self._last.get(spec.name)
        is_same = last is not None and (last.port, last.has_tls) == (port, has_tls)
        if last is None or not is_same or now >= last.again_at:
            try:
                await asyncio.to_thread(
                    self._engine.expose, spec.name, SERVICE, port, has_tls=has_tls
                )
                last = _Attempt(port, has_tls, now + _CHECK_S)
            except TimonelError as error:
                last = _Attempt(port, has_tls, now + _RETRY_S, error)
            self._last[spec.name] = last
        if last.error is not None:
            raise last.error

    async def conceal(self, name: str) -> None:
        """End what `expose` did."""
        await asyncio.to_thread(self._engine.conceal, name)
        self._last.pop(name, None)

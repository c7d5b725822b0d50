"""Services that the cluster itself scales."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from timonel.endpoints.autoscaling import ScalingPolicy
from timonel.endpoints.control.plan import autoscaler_spec
from timonel.engines import AutoscalerSpec, ServiceEngine
from timonel.errors import NotFoundError, TimonelError

_AGAIN_S = 60.0
"""Time after which rules are applied again, as somebody may have deleted the object."""
_RETRY_S = 10.0


@dataclass(frozen=True)
class _Applied:
    rules: AutoscalerSpec | None
    again_at: float
    error: TimonelError | None


class ClusterAutoscalers:
    """Applies scaling rules to the cluster, when they change and from time to time."""

    def __init__(self, engine: ServiceEngine) -> None:
        self._engine = engine
        self._applied: dict[str, _Applied] = {}

    async def keep(self, name: str, policy: ScalingPolicy, now: float) -> None:
        """Apply or remove the scaling rules of a service, as its policy says.

        Args:
            now: The time of the autoscalers in seconds.
        """
        rules = autoscaler_spec(policy)
        applied = self._applied.get(name)
        if applied is None or applied.rules != rules or now >= applied.again_at:
            applied = self._applied[name] = await asyncio.to_thread(self._apply, name, rules, now)
        # Rights to objects that the policy does not use may be missing.
        if applied.error is not None and rules is not None:
            raise applied.error

    def _apply(self, name: str, rules: AutoscalerSpec | None, now: float) -> _Applied:
        try:
            self._engine.autoscale(name, rules)
        except NotFoundError:
            return _Applied(rules, now, None)  # it is being deleted
        except TimonelError as error:
            return _Applied(rules, now + (_AGAIN_S if rules is None else _RETRY_S), error)
        # Nobody else creates one that would have to be deleted.
        return _Applied(rules, math.inf if rules is None else now + _AGAIN_S, None)

    def forget(self, name: str | None = None) -> None:
        """Forget the applied rules of a service, or of all."""
        if name is None:
            self._applied.clear()
        else:
            self._applied.pop(name, None)

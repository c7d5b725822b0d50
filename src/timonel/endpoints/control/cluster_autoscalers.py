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
"""Time after which the cluster is told again, as somebody may have deleted its object."""
_RETRY_S = 10.0


@dataclass(frozen=True)
class _Told:
    rules: AutoscalerSpec | None
    again_at: float
    error: TimonelError | None


class ClusterAutoscalers:
    """Tells the cluster which services it scales, when that changes and from time to time.

    Args:
        engine: Engine of the services.
    """

    def __init__(self, engine: ServiceEngine) -> None:
        self._engine = engine
        self._told: dict[str, _Told] = {}

    async def keep(self, name: str, policy: ScalingPolicy, now: float) -> None:
        """Have the cluster scale a service where its policy says so, and else no longer.

        Args:
            name: The service.
            policy: Its policy.
            now: The time of the autoscalers in seconds.

        Raises:
            TimonelError: The cluster did not take the rules, or cannot follow them.
        """
        rules = autoscaler_spec(policy)
        told = self._told.get(name)
        if told is None or told.rules != rules or now >= told.again_at:
            told = self._told[name] = await asyncio.to_thread(self._tell, name, rules, now)
        # Rights to objects that the policy does not use may be missing.
        if told.error is not None and rules is not None:
            raise told.error

    def _tell(self, name: str, rules: AutoscalerSpec | None, now: float) -> _Told:
        try:
            self._engine.autoscale(name, rules)
        except NotFoundError:
            return _Told(rules, now, None)  # it is being deleted
        except TimonelError as error:
            return _Told(rules, now + (_AGAIN_S if rules is None else _RETRY_S), error)
        # Nobody else makes one that would have to be deleted.
        return _Told(rules, math.inf if rules is None else now + _AGAIN_S, None)

    def forget(self, name: str | None = None) -> None:
        """Forget what the cluster was told about a service, or about all."""
        if name is None:
            self._told.clear()
        else:
            self._told.pop(name, None)

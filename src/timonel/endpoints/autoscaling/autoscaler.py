"""Autoscaler of one endpoint: measurements in, decisions out, state as JSON.

Call `record` with each measurement, about once per second, and `decide` every ``policy.tick_s``
seconds. Call both at once when the activator reports requests for an endpoint without replicas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter, ValidationError

from timonel.endpoints.autoscaling import hpa, kpa
from timonel.endpoints.autoscaling.decisions import Decision
from timonel.endpoints.autoscaling.forecast import Pattern
from timonel.endpoints.autoscaling.policy import BUCKET_S, ScalingPolicy
from timonel.endpoints.autoscaling.windows import Window
from timonel.errors import FormatError

_LONGEST_GAP_S = 10.0


@dataclass(frozen=True)
class Replicas:
    """Replicas of an endpoint at one moment.

    Args:
        requested: Requested number, set by the last decision.
        ready: Number of replicas that accept requests.
        reachable: Whether the endpoint has traffic at all; an old revision has none.
        activator_in_path: Whether the activator receives the requests.
        samples: Measurements for the HPA algorithm.
    """

    requested: int
    ready: int
    reachable: bool = True
    activator_in_path: bool = False
    samples: Mapping[str, Sequence[hpa.ReplicaSample]] = field(default_factory=dict)


@dataclass(frozen=True)
class AutoscalerState:
    """State of an autoscaler between two calls."""

    stable: Window
    panic: Window
    kpa: kpa.KpaState
    hpa: hpa.HpaState = field(default_factory=hpa.HpaState)
    pattern: Pattern | None = None

    @classmethod
    def begin(cls, now: float, policy: ScalingPolicy, ready: int = 0) -> AutoscalerState:
        """Return the state of an autoscaler without history.

        Args:
            now: Unix time, in seconds.
            policy: Policy of the endpoint.
            ready: Replicas that are ready already.
        """
        return cls(
            Window.of(policy.window_s, BUCKET_S),
            Window.of(policy.panic_window_s, BUCKET_S),
            kpa.KpaState.begin(now, policy, ready),
        )

    def resume(self, now: float, policy: ScalingPolicy, ready: int) -> AutoscalerState:
        """Return the state to continue with after a restart.

        After a gap, missing measurements would count as zero load. So the averages are reset, in
        panic mode; everything else is kept.
        """
        if self.stable.age_s(now) <= _LONGEST_GAP_S:
            return self
        fresh = AutoscalerState.begin(now, policy, ready)
        if ready <= 1:
            return replace(self, stable=fresh.stable, panic=fresh.panic)
        held = max(ready, self.kpa.panic_replicas)
        panicking = replace(self.kpa, panic_at=now, panic_replicas=held)
        return replace(self, stable=fresh.stable, panic=fresh.panic, kpa=panicking)

    def to_json(self) -> str:
        """Return the state as JSON."""
        return _ADAPTER.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> AutoscalerState:
        """Parse the output of `to_json`.

        Raises:
            FormatError: The text is not the state of an autoscaler.
        """
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            raise FormatError(
                "the state of the autoscaler cannot be read",
                hint="delete it; the autoscaler then starts without history",
            ) from error


_ADAPTER = TypeAdapter(AutoscalerState)


def record(
    now: float, load: float, state: AutoscalerState, policy: ScalingPolicy
) -> AutoscalerState:
    """Add a measurement.

    Args:
        now: Unix time, in seconds.
        load: Requests in flight, or requests per second, of all replicas and the activator
            together, averaged since the last measurement. Negative and non-finite values are
            ignored.
        state: Present state.
        policy: Policy of the endpoint.
    """
    if not 0 <= load < math.inf:
        return state
    stable = state.stable.resized(policy.window_s)
    panic = state.panic.resized(policy.panic_window_s)
    if -stable.age_s(now) > policy.window_s + BUCKET_S:
        # The clock was set back: windows ignore values that are so late.
        stable, panic = replace(stable, sums=()), replace(panic, sums=())
    stable, panic = stable.record(now, load), panic.record(now, load)
    pattern = state.pattern
    if policy.forecast:
        pattern = (pattern or Pattern()).observe(now, load, policy.forecast)
    return AutoscalerState(stable, panic, state.kpa, state.hpa, pattern)


def decide(
    now: float, replicas: Replicas, state: AutoscalerState, policy: ScalingPolicy
) -> tuple[Decision, AutoscalerState]:
    """Decide the number of replicas.

    Args:
        now: Unix time, in seconds.
        replicas: Replicas at present.
        state: Present state.
        policy: Policy of the endpoint.
    """
    if policy.algorithm == "cluster":
        # Kubernetes leaves Deployments at zero alone.
        found = replicas.requested or policy.min_replicas
        return Decision(found, reason="set by a HorizontalPodAutoscaler"), state
    if policy.algorithm == "hpa":
        decision, after = hpa.step(now, replicas.requested, replicas.samples, state.hpa, policy)
        return decision, replace(state, hpa=after)
    load = kpa.Load(
        state.stable.average(now, policy.aggregation),
        state.panic.average(now, policy.aggregation),
        replicas.ready,
        replicas.requested,
        replicas.reachable,
        replicas.activator_in_path,
    )
    ahead = 0
    if policy.forecast and state.pattern and replicas.reachable:
        ahead = state.pattern.replicas(now, policy.forecast, policy.load_per_replica)
    decision, after_kpa = kpa.step(now, load, state.kpa, policy, ahead)
    return decision, replace(state, kpa=after_kpa)

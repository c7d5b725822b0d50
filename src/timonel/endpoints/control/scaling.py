"""Autoscaler of one version: its measurements, its state and its last decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from timonel.endpoints.autoscaling import (
    AutoscalerState,
    Decision,
    Replicas,
    ReplicaSample,
    ScalingPolicy,
    decide,
    record,
)
from timonel.endpoints.autoscaling.forecast import Pattern
from timonel.endpoints.autoscaling.windows import Window
from timonel.endpoints.control.scrape import ReplicaLoad

_SAVE_S = 10.0
"""Longest time between two saves of the state; decisions are saved at once."""


class Scaler:
    """Decides the number of replicas of one version.

    Args:
        now: The time in seconds.
        ready: Ready replicas at the start. With more than one, the autoscaler begins in panic mode,
            so that none stops before enough load was measured.
        saved: State of an earlier process; None without history.
    """

    def __init__(
        self,
        policy: ScalingPolicy,
        now: float,
        ready: int,
        saved: AutoscalerState | None = None,
    ) -> None:
        self.policy = policy
        self.decision: Decision | None = None
        if saved is None:
            self._state = AutoscalerState.begin(now, policy, ready)
        else:
            self._state = saved.resume(now, policy, ready)
        self._save_at = now
        self._rate = Window.of(policy.window_s)
        self._concurrency = Window.of(policy.window_s)
        self._due_at = now

    def configure(self, policy: ScalingPolicy) -> None:
        """Change the policy; measurements are kept."""
        if policy != self.policy:
            before, after = self.policy.forecast, policy.forecast
            if before and after and before.period_s != after.period_s:
                self._state = replace(self._state, pattern=None)  # its slots mean other times
            self.policy = policy
            self._due_at = 0.0

    @property
    def pattern(self) -> Pattern | None:
        """Learned load over a period."""
        return self._state.pattern

    def expect(self, pattern: Pattern, share: float) -> None:
        """Start from a share of another version's learned pattern."""
        if self._state.pattern is None:
            self._state = replace(self._state, pattern=replace(pattern, ratio=share))

    def unsaved(self, now: float) -> AutoscalerState | None:
        """Return the state if it is time to save it, else None."""
        if self._save_at - _SAVE_S <= now < self._save_at:
            return None
        self._save_at = now + _SAVE_S
        return self._state

    def record(self, now: float, load: ReplicaLoad, held: int) -> None:
        """Record the load of the last second.

        Args:
            now: The time in seconds.
            held: Requests that wait for a first replica.
        """
        value = load.rate if self.policy.metric == "rps" else load.concurrency
        # A request that waits is load in either unit.
        self._state = record(now, value + held, self._state, self.policy)
        self._rate = self._rate.record(now, load.rate)
        self._concurrency = self._concurrency.record(now, load.concurrency + held)

    def hasten(self, now: float) -> None:
        """Decide at the next call of `step`, as a request waits for a first replica."""
        self._due_at = now

    def load(self, now: float) -> ReplicaLoad:
        """Return the load, averaged over the stable window."""
        return ReplicaLoad(self._concurrency.average(now) or 0.0, self._rate.average(now) or 0.0)

    def recent_load(self, now: float, span_s: float) -> ReplicaLoad | None:
        """Return the load of the last seconds of the stable window; None if not measured."""
        rate = self._rate.resized(span_s).average(now)
        concurrency = self._concurrency.resized(span_s).average(now)
        return None if rate is None or concurrency is None else ReplicaLoad(concurrency, rate)

    def step(
        self,
        now: float,
        ready: int,
        requested: int,
        *,
        reachable: bool,
        samples: Callable[[], Mapping[str, Sequence[ReplicaSample]]] | None = None,
    ) -> Decision:
        """Return the current decision, updated once per tick.

        Args:
            now: The time in seconds.
            samples: Returns measurements of replicas by metric, for the HPA algorithm.
        """
        if self.decision is not None and now < self._due_at:
            return self.decision
        self._due_at = now + self.policy.tick_s
        # Envoy turns to the activator by itself once there is no replica.
        replicas = Replicas(requested, ready, reachable, activator_in_path=True)
        if samples is not None:
            replicas = replace(replicas, samples=samples())
        before = self.decision
        self.decision, self._state = decide(now, replicas, self._state, self.policy)
        if before is None or (before.replicas, before.panicking) != (
            self.decision.replicas,
            self.decision.panicking,
        ):
            self._save_at = now
        return self.decision

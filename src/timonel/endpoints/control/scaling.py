"""Autoscaler of one version: its measurements, its state and its last decision."""

from __future__ import annotations

from timonel.endpoints.autoscaling import (
    AutoscalerState,
    Decision,
    Replicas,
    ScalingPolicy,
    decide,
    record,
)
from timonel.endpoints.autoscaling.windows import Window
from timonel.endpoints.control.scrape import Load


class Scaler:
    """Decides the number of replicas of one version.

    Args:
        policy: The policy.
        now: The time in seconds.
        ready: Ready replicas at the start; more than one begin in panic, as none may stop before
            the averages mean something.
    """

    def __init__(self, policy: ScalingPolicy, now: float, ready: int) -> None:
        self.policy = policy
        self.decision: Decision | None = None
        self._state = AutoscalerState.begin(now, policy, ready)
        self._rate = Window.of(policy.window_s)
        self._concurrency = Window.of(policy.window_s)
        self._due_at = now

    def configure(self, policy: ScalingPolicy) -> None:
        """Change the policy; measurements are kept."""
        if policy != self.policy:
            self.policy = policy
            self._due_at = 0.0

    def record(self, now: float, load: Load, held: int) -> None:
        """Record the load of the last second.

        Args:
            now: The time in seconds.
            load: Load of all replicas.
            held: Requests that wait for a first replica.
        """
        value = load.rate if self.policy.metric == "rps" else load.concurrency
        # A request that waits is load in either unit.
        self._state = record(now, value + held, self._state, self.policy)
        self._rate = self._rate.record(now, load.rate)
        self._concurrency = self._concurrency.record(now, load.concurrency + held)

    def hasten(self, now: float) -> None:
        """Decide at the next call of `step`: a request waits for a first replica."""
        self._due_at = now

    def load(self, now: float) -> Load:
        """Return the load, averaged over the stable window."""
        return Load(self._concurrency.average(now) or 0.0, self._rate.average(now) or 0.0)

    def step(self, now: float, ready: int, requested: int, *, reachable: bool) -> Decision:
        """Return the current decision, which is made anew each tick.

        Args:
            now: The time in seconds.
            ready: Ready replicas.
            requested: Requested replicas.
            reachable: Whether the version gets requests.
        """
        if self.decision is not None and now < self._due_at:
            return self.decision
        self._due_at = now + self.policy.tick_s
        # Envoy turns to the activator by itself once there is no replica.
        replicas = Replicas(requested, ready, reachable, activator_in_path=True)
        self.decision, self._state = decide(now, replicas, self._state, self.policy)
        return self.decision

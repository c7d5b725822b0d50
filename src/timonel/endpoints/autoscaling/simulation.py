"""Replay traces of load against the autoscaler.

This is a fluid model: numbers of requests are real, and the requests of one second are equal. Each
second, arrivals join the requests in flight. Ready replicas serve as many of these as they can, in
order of arrival. The cost of a step does not depend on the number of replicas.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from timonel.endpoints.autoscaling.autoscaler import AutoscalerState, Replicas, decide, record
from timonel.endpoints.autoscaling.decisions import Decision
from timonel.endpoints.autoscaling.hpa import ReplicaSample
from timonel.endpoints.autoscaling.policy import ScalingPolicy
from timonel.endpoints.autoscaling.traces import Levels, Trace
from timonel.errors import SpecError

Counts = npt.NDArray[np.int64]
Decider = Callable[
    [float, Replicas, AutoscalerState, ScalingPolicy], tuple[Decision, AutoscalerState]
]
_MAX_REPLICAS = 1_000_000
_NOTHING = 1e-3
"""Remainder of a request that counts as answered, as a fluid never drains completely."""


@dataclass(frozen=True)
class ServiceModel:
    """Behaviour of a replica.

    Args:
        startup_s: Seconds from its start until it is ready.
        service_s: Seconds that a request takes, apart from waiting.
        concurrency: Requests that it serves at once; 0: the policy's target.
    """

    startup_s: float = 10.0
    service_s: float = 0.1
    concurrency: float = 0.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("the start-up time", self.startup_s, 0.0),
            ("the service time", self.service_s, 1e-6),
            ("the concurrency", self.concurrency, 0.0),
        ):
            if not least <= value < math.inf:
                raise SpecError(f"{name} must be at least {least:g}, got {value:g}")

    def slots(self, policy: ScalingPolicy) -> float:
        """Return the number of requests that a replica serves at once."""
        if self.concurrency:
            return self.concurrency
        if policy.metric == "concurrency":
            return policy.capacity
        if policy.metric == "rps":
            return policy.target * self.service_s
        raise SpecError(
            f"the metric {policy.metric} does not tell how many requests a replica takes at once",
            hint="state the concurrency",
        )


@dataclass(frozen=True, eq=False)
class Simulation:
    """Result of a simulation; arrays have one value per second.

    Args:
        arrivals: Requests that arrived.
        in_flight: Average number of requests in flight, including waiting ones.
        waiting: Requests waiting at the end of the second.
        requested: Requested replicas, including those that are starting.
        decisions: Decisions that changed something, with their times.
        slots: Requests that a replica serves at once.
    """

    arrivals: Levels
    in_flight: Levels
    waiting: Levels
    requested: Counts
    ready: Counts
    decisions: tuple[tuple[float, Decision], ...]
    model: ServiceModel
    slots: float

    @property
    def replica_hours(self) -> float:
        """Hours of all replicas, from their start to their stop."""
        return float(self.requested.sum()) / 3600

    @property
    def cold_starts(self) -> int:
        """Number of times at which requests found no ready replica."""
        cold = (self.ready == 0) & (self.in_flight > 0)
        return int(np.count_nonzero(cold[1:] & ~cold[:-1])) + int(cold[0])

    @property
    def over_target_s(self) -> int:
        """Seconds with more requests in flight than ready replicas take."""
        return int(np.count_nonzero(self.in_flight > self.ready * self.slots + 1e-9))

    @property
    def unserved(self) -> float:
        """Requests still waiting at the end."""
        return float(self.waiting[-1])

    @cached_property
    def latencies_s(self) -> Levels:
        """Latency of the requests of each second.

        Requests still waiting at the end count with their time until then.
        """
        arrived = np.cumsum(self.arrivals)
        started = np.concatenate([[0.0], np.maximum.accumulate(arrived - self.waiting)])
        middle = arrived - self.arrivals / 2
        after = np.searchsorted(started, middle).clip(1, len(arrived))
        gained = np.maximum(started[after] - started[after - 1], 1e-9)
        share = ((middle - started[after - 1]) / gained).clip(0, 1)
        waited = after - 1 + share - (np.arange(len(arrived)) + 0.5)
        latencies: Levels = np.maximum(waited, 0) + self.model.service_s
        return latencies

    def latency_s(self, quantile: float) -> float:
        """Return a quantile of the latency over all requests; NaN without any."""
        total = self.arrivals.sum()
        if not total:
            return math.nan
        order = np.argsort(self.latencies_s)
        reached = np.searchsorted(np.cumsum(self.arrivals[order]), quantile * total)
        return float(self.latencies_s[order][min(reached, len(order) - 1)])

    def summary(self) -> dict[str, float]:
        """Return the figures by name."""
        return {
            "duration_s": len(self.arrivals),
            "requests": round(float(self.arrivals.sum())),
            "unserved": round(self.unserved),
            "replica_hours": self.replica_hours,
            "max_replicas": int(self.requested.max()),
            "mean_replicas": float(self.requested.mean()),
            "cold_starts": self.cold_starts,
            "over_target_s": self.over_target_s,
            "latency_p50_s": self.latency_s(0.5),
            "latency_p95_s": self.latency_s(0.95),
            "latency_p99_s": self.latency_s(0.99),
            "panics": sum(
                now.panicking and not before.panicking
                for (_, before), (_, now) in zip(self.decisions, self.decisions[1:], strict=False)
            ),
        }


@dataclass
class _Fleet:
    """Ready replicas, and groups of replicas that start together."""

    ready: int
    starting: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def requested(self) -> int:
        return self.ready + sum(count for _, count in self.starting)

    def advance(self, now: float) -> None:
        while self.starting and self.starting[0][0] <= now:
            self.ready += self.starting.popleft()[1]

    def resize(self, count: int, ready_at: float) -> None:
        """Start replicas, or stop the newest ones."""
        more = count - self.requested
        if more > 0:
            self.starting.append((ready_at, more))
        while more < 0 and self.starting:
            at, newest = self.starting.pop()
            if newest + more > 0:
                self.starting.append((at, newest + more))
            more += newest
        self.ready += min(0, more)


def simulate(
    trace: Trace,
    policy: ScalingPolicy,
    model: ServiceModel,
    *,
    seed: int = 0,
    decider: Decider = decide,
) -> Simulation:
    """Replay a trace.

    The endpoint begins with its initial replicas, all ready.

    Args:
        trace: Load in each second. Arrivals of ``rps`` are Poisson-distributed.
        decider: Decides the number of replicas; by default this package's autoscaler.
    """
    if policy.algorithm == "cluster":
        raise SpecError("metrics of a cluster cannot be simulated", hint="simulate another policy")
    if policy.metric == "memory" or policy.further_metrics:
        raise SpecError("memory cannot be simulated", hint="simulate one other metric")
    slots = model.slots(policy)
    levels = trace.levels
    if trace.unit == "rps":
        levels = np.random.default_rng(seed).poisson(levels).astype(np.float64)
    fleet = _Fleet(policy.clamp(policy.initial_replicas))
    state = AutoscalerState.begin(0.0, policy, fleet.ready)
    decision = Decision(fleet.ready)
    decisions: list[tuple[float, Decision]] = []
    columns: list[tuple[float, float, float, int, int]] = []
    in_flight, next_tick, busy, tick_seconds = 0.0, policy.tick_s, 0.0, 0
    for second, level in enumerate(levels.tolist()):
        fleet.advance(second)
        capacity = fleet.ready * slots
        count, in_flight, average = _flow(trace.unit, level, in_flight, capacity, model.service_s)
        excess = max(0.0, in_flight - capacity)
        columns.append((count, average, excess, fleet.requested, fleet.ready))
        load = count if policy.metric == "rps" else average
        state = record(second, load, state, policy)
        busy += min(average, capacity) if policy.metric == "cpu" else load
        tick_seconds += 1
        now = second + 1.0
        if now < next_tick and (count == 0 or decision.replicas):
            continue
        if now >= next_tick:
            next_tick = now + policy.tick_s
        seen = _seen(now, fleet, decision, busy / tick_seconds, slots, policy)
        decided, state = decider(now, seen, state, policy)
        busy, tick_seconds = 0.0, 0
        if decided.replicas != decision.replicas or decided.panicking != decision.panicking:
            decisions.append((now, decided))
        fleet.resize(decided.replicas, now + model.startup_s)
        decision = decided
    arrived, averages, waiting, requested, ready = np.array(columns).T
    if requested.max() > _MAX_REPLICAS:
        raise SpecError(
            f"the trace needs more than {_MAX_REPLICAS} replicas", hint="set max_replicas"
        )
    counts = (requested.astype(np.int64), ready.astype(np.int64))
    return Simulation(arrived, averages, waiting, *counts, tuple(decisions), model, slots)


def _flow(
    unit: str, level: float, in_flight: float, capacity: float, service_s: float
) -> tuple[float, float, float]:
    """Return arrivals of a second, requests in flight after it, and their average."""
    if unit == "rps":
        return level, *_served(in_flight, level, capacity, service_s)
    answered = min(level, capacity) / service_s
    return max(0.0, answered + level - in_flight), level, level


def _served(
    in_flight: float, arrivals: float, capacity: float, service_s: float
) -> tuple[float, float]:
    """Return the requests in flight after a second, and their average."""
    if in_flight <= capacity and arrivals * service_s <= capacity:
        # All are served at once: the number approaches arrivals times service time.
        level = arrivals * service_s
        rest = math.exp(-1 / service_s)
        after = level + (in_flight - level) * rest
        average = level + (in_flight - level) * (1 - rest) * service_s
        return after if arrivals or after > _NOTHING else 0.0, average
    after = in_flight + arrivals - capacity / service_s
    after = max(after, min(capacity, arrivals * service_s))
    return after, (in_flight + after) / 2


def _seen(
    now: float, fleet: _Fleet, decision: Decision, load: float, slots: float, policy: ScalingPolicy
) -> Replicas:
    """Return the input of the autoscaler.

    Args:
        load: Load of all replicas since the last decision.
    """
    samples: dict[str, list[ReplicaSample]] = {}
    if policy.algorithm == "hpa":
        starting = fleet.requested - fleet.ready
        each = load / fleet.ready if fleet.ready else 0.0
        samples[policy.metric] = [
            ReplicaSample(each, slots, count=fleet.ready),
            ReplicaSample(0.0, slots, ready=False, started_at=now, ready_since=now, count=starting),
        ]
        samples[policy.metric] = [s for s in samples[policy.metric] if s.count]
    return Replicas(
        fleet.requested, fleet.ready, activator_in_path=decision.through_activator, samples=samples
    )

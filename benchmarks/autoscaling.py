"""Autoscaling in simulation: a spike, a diurnal day, and the speed of the simulator.

usage: autoscaling.py [--output benchmarks/results/autoscaling.md]

Everything but the speed is computed, not timed, so the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import _measure

from timonel.endpoints.autoscaling import AutoscalerState, Decision, Replicas, ScalingPolicy
from timonel.endpoints.autoscaling.simulation import Decider, ServiceModel, Simulation, simulate
from timonel.endpoints.autoscaling.traces import DAY_S, Trace, diurnal, spike

HERE = Path(__file__).parent
FAST = {"panic_window_percent": 2}
STARTUPS_S = (2, 10, 30, 60)
UTILIZATIONS = (50, 55, 60, 65, 70, 75, 80, 85, 90, 95)
SLOTS = 10
"""Requests that a replica of the diurnal day serves at once."""
SERVICE_S = 0.1
BOUNDS = (("p99", 0.99, 0.2), ("p99.9", 0.999, 1.0))
"""Name of the quantile, the quantile, and its bound in seconds."""


def knative() -> Decider:
    """Return Knative's published formulas with its defaults, without any code of ours."""
    loads: list[float] = []
    panic_since, most = None, 0

    def decide(
        now: float, seen: Replicas, state: AutoscalerState, policy: ScalingPolicy
    ) -> tuple[Decision, AutoscalerState]:
        nonlocal panic_since, most
        # The state of the simulation holds the measurements of the last minute.
        loads[:] = state.stable.sums
        ready = max(1, seen.ready)
        target = max(0.01, policy.target * 0.7)
        # Of the last 60 and 6 buckets, the present one is still empty and does not count.
        stable = math.ceil(sum(loads[-59:]) / len(loads[-59:]) / target - 1e-6)
        panic = math.ceil(sum(loads[-5:]) / len(loads[-5:]) / target - 1e-6)
        up, down = math.ceil(1000 * ready), math.floor(ready / 2)
        over = panic / ready >= 2
        if over:
            panic_since = now
        elif panic_since is not None and now - panic_since > 60:
            panic_since, most = None, 0
        want = min(max(stable, down), up)
        if panic_since is not None:
            most = max(most, want, min(max(panic, down), up))
            want = most
        want = max(want, 1)
        return Decision(min(want, policy.max_replicas or want)), state

    return decide


def spikes() -> Iterator[str]:
    """Yield the table of the spike."""
    yield "\n## Spike: 1 client, then 50, then 1\n"
    yield (
        "Seconds in which more requests were in flight than ready replicas take at once, and "
        "replica-hours of the half hour. A replica takes one request of 0.1 s at once; the spike "
        "lasts 120 s. The floor is the start-up time: no autoscaler without a forecast is better.\n"
    )
    yield (
        "| start-up | floor | Knative's formulas | kpa | kpa, panic window 2 s | hpa, CPU 70 % | "
        "replica-hours: kpa | kpa, 2 s | hpa |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for startup_s in STARTUPS_S:
        model = ServiceModel(startup_s, SERVICE_S, 1)
        kpa = ScalingPolicy(target=1, min_replicas=1, target_burst_capacity=0)
        hpa = ScalingPolicy(metric="cpu", target=70, min_replicas=1)
        fast = simulate(spike(), ScalingPolicy(**kpa.model_dump() | FAST), model)
        own = simulate(spike(), kpa, model, decider=knative())
        ours = simulate(spike(), kpa, model)
        other = simulate(spike(), hpa, model)
        yield (
            f"| {startup_s} s | {startup_s} s | {own.over_target_s} s | {ours.over_target_s} s | "
            f"{fast.over_target_s} s | {other.over_target_s} s | {ours.replica_hours:.2f} | "
            f"{fast.replica_hours:.2f} | {other.replica_hours:.2f} |"
        )


def days() -> Iterator[str]:
    """Yield the tables of the diurnal day."""
    yield "\n## Diurnal day\n"
    yield (
        "The second day of the trace `diurnal` with 5,000 requests/s at its peak, for replicas "
        f"that start in 60 s and take {SLOTS} requests of 0.1 s at once; at most 100 replicas. "
        "Each autoscaler has the cheapest of the utilizations "
        f"{UTILIZATIONS[0]}, {UTILIZATIONS[1]}, ... {UTILIZATIONS[-1]} % that keeps the bound."
    )
    trace, model = diurnal(high=5000, days=2), ServiceModel(60, SERVICE_S, SLOTS)
    common = {"min_replicas": 1, "max_replicas": 100}
    kpa = {"target": SLOTS, **common}
    candidates = {
        "hpa, CPU": [ScalingPolicy(metric="cpu", target=u, **common) for u in UTILIZATIONS],
        "kpa": [ScalingPolicy(utilization_percent=u, **kpa) for u in UTILIZATIONS],
        "kpa, forecast": [
            ScalingPolicy(utilization_percent=u, forecast={"lead_s": 60}, **kpa)
            for u in UTILIZATIONS
        ],
    }
    results = {name: last_days(policies, trace, model) for name, policies in candidates.items()}
    for title, quantile, bound_s in BOUNDS:
        yield f"\n### {title} of at most {bound_s:g} s\n"
        yield "| autoscaler | utilization | replica-hours | p99 | p99.9 | over target |"
        yield "|---|---|---|---|---|---|"
        for name, found in results.items():
            kept = [
                (each.replica_hours, used, each)
                for used, each in zip(UTILIZATIONS, found, strict=True)
                if each.latency_s(quantile) <= bound_s
            ]
            if not kept:
                yield f"| {name} | none keeps it | - | - | - | - |"
                continue
            hours, used, each = min(kept, key=lambda item: item[:2])
            yield (
                f"| {name} | {used} % | {hours:.1f} | {each.latency_s(0.99):.2f} s | "
                f"{each.latency_s(0.999):.2f} s | {each.over_target_s} s |"
            )
    yield "\n### Each with a utilization of 70 %\n"
    yield "| autoscaler | replica-hours | p99 | p99.9 | over target |"
    yield "|---|---|---|---|---|"
    for name, found in results.items():
        each = found[UTILIZATIONS.index(70)]
        yield (
            f"| {name} | {each.replica_hours:.1f} | {each.latency_s(0.99):.2f} s | "
            f"{each.latency_s(0.999):.2f} s | {each.over_target_s} s |"
        )


def last_days(
    policies: Sequence[ScalingPolicy], trace: Trace, model: ServiceModel
) -> list[Simulation]:
    """Return the last day of each simulation."""
    found = []
    for policy in policies:
        whole = simulate(trace, policy, model)
        arrays = ("arrivals", "in_flight", "waiting", "requested", "ready")
        found.append(replace(whole, **{name: getattr(whole, name)[-DAY_S:] for name in arrays}))
    return found


def speed() -> Iterator[str]:
    """Yield the table of the simulator's speed."""
    yield "\n## Speed of the simulator\n"
    yield "One day in steps of one second, on one core.\n"
    yield "| peak of replicas | autoscaler | time |"
    yield "|---|---|---|"
    model = ServiceModel(10, SERVICE_S, SLOTS)
    for peak in (100, 10_000):
        trace = diurnal(high=peak * 0.7 * SLOTS / SERVICE_S, days=1)
        for metric, name in (("concurrency", "kpa"), ("cpu", "hpa")):
            target = SLOTS if metric == "concurrency" else 70
            policy = ScalingPolicy(metric=metric, target=target, max_replicas=peak)
            start = time.process_time()
            result = simulate(trace, policy, model)
            took_s = time.process_time() - start
            yield f"| {int(result.requested.max()):,} | {name} | {took_s:.1f} s |"


def main() -> None:
    """Run everything, print the tables and write them with the machine and the commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "autoscaling.md")
    options = parser.parse_args()
    lines = [
        "# Autoscaling in simulation\n",
        (
            f"Computed {time.strftime('%Y-%m-%d')} at commit {_measure.commit()} on "
            f"{_measure.machine()}. Smaller is better everywhere."
        ),
        *spikes(),
        *days(),
        *speed(),
    ]
    page = "\n".join(lines) + "\n"
    print(page)
    options.output.write_text(page)


if __name__ == "__main__":
    main()

"""The algorithm of Kubernetes' Horizontal Pod Autoscaler.

It follows pkg/controller/podautoscaler: `proposal` is its replica calculator; `step` adds multiple
metrics, stabilization and the speed limits of autoscaling/v2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from timonel.endpoints.autoscaling.decisions import Decision
from timonel.endpoints.autoscaling.policy import RESOURCES, ScalingPolicy, ScalingRules

CPU_INITIALIZATION_S = 300.0
READINESS_DELAY_S = 30.0


@dataclass(frozen=True)
class ReplicaSample:
    """Measurement of one replica, or of several with equal values.

    Args:
        usage: Amount in use; None if it was not measured.
        request: Requested amount, in the unit of ``usage``; 0 unless the target is a percentage.
        ready: Whether the replica is ready.
        pending: Whether its process has not started.
        started_at: Unix time at which it started.
        ready_since: Unix time of the last change of ``ready``.
        measured_since: Unix time at which the measurement began.
        count: Number of replicas with these values.
    """

    usage: float | None
    request: float = 0.0
    ready: bool = True
    pending: bool = False
    started_at: float = -math.inf
    ready_since: float = -math.inf
    measured_since: float = math.inf
    count: int = 1


Samples = Mapping[str, Sequence[ReplicaSample]]
"""Measurements of each metric; a metric that is missing or empty has failed."""


@dataclass(frozen=True)
class HpaState:
    """State between two steps.

    Args:
        proposals: Times and numbers of earlier proposals, before any limit.
        changes: Times and sizes of earlier changes; negative ones removed replicas.
    """

    proposals: tuple[tuple[float, int], ...] = ()
    changes: tuple[tuple[float, int], ...] = ()


def step(
    now: float, replicas: int, samples: Samples, state: HpaState, policy: ScalingPolicy
) -> tuple[Decision, HpaState]:
    """Decide the number of replicas.

    Args:
        now: Unix time, in seconds.
        policy: Policy with the algorithm ``hpa`` and at least one replica.
    """
    least = max(1, policy.min_replicas)
    if not replicas:
        desired = policy.clamp(max(least, policy.initial_replicas))
        return _decided(now, 0, desired, "starts", state, policy)
    bounded = policy.clamp(replicas, least)
    if bounded != replicas:
        return _decided(now, replicas, bounded, "the policy's bounds have changed", state, policy)
    needed, reason = _by_metrics(now, replicas, samples, policy)
    if needed is None:
        return Decision(replicas, reason=reason), state
    stable, state = stabilize(now, replicas, needed, state, policy)
    if stable != needed:
        reason = f"{reason}; stabilized at {stable}"
    final = limit(now, replicas, stable, state, policy)
    if final != stable:
        reason = f"{reason}; limited to {final}"
    return _decided(now, replicas, final, reason, state, policy)


def proposal(
    now: float,
    replicas: int,
    samples: Sequence[ReplicaSample],
    target: float,
    *,
    tolerance: float = 0.1,
    is_percent: bool = True,
    is_cpu: bool = False,
) -> int | None:
    """Return the replicas that one metric needs; None without measurements.

    Args:
        now: Unix time, in seconds.
        target: Percent of the requested amount, or the usage of each replica.
        tolerance: Deviation of the ratio from 1 that is ignored.
        is_percent: Whether ``target`` is a percentage.
    """
    missing = [s for s in samples if not s.pending and s.usage is None]
    measured = [s for s in samples if not s.pending and s.usage is not None]
    unready = [s for s in samples if s.pending]
    if is_cpu:
        unready += [s for s in measured if _is_unready(now, s)]
        measured = [s for s in measured if not _is_unready(now, s)]
    ratio = _ratio([(s.usage or 0.0, s) for s in measured], target, is_percent)
    if ratio is None:
        return None
    rising = bool(unready) and ratio > 1
    if not rising and not missing:
        if abs(1 - ratio) <= tolerance:
            return replicas
        return math.ceil(ratio * sum(s.count for s in measured))
    assumed = [(s.usage or 0.0, s) for s in measured]
    if ratio < 1:
        full = max(100.0, target) / 100
        assumed += [(s.request * full if is_percent else target, s) for s in missing]
    elif ratio > 1:
        assumed += [(0.0, s) for s in missing]
    if rising:
        assumed += [(0.0, s) for s in unready]
    again = _ratio(assumed, target, is_percent)
    if again is None or abs(1 - again) <= tolerance or (ratio < 1) != (again < 1):
        return replicas
    desired = math.ceil(again * sum(s.count for _, s in assumed))
    # Assumed measurements must not reverse the direction.
    return replicas if (desired > replicas) == (again < 1) else desired


def stabilize(
    now: float, replicas: int, desired: int, state: HpaState, policy: ScalingPolicy
) -> tuple[int, HpaState]:
    """Return the most conservative proposal in the stabilization windows, and the new state."""
    up_s = policy.behavior.scale_up.stabilization_window_seconds
    down_s = policy.behavior.scale_down.stabilization_window_seconds
    lowest = min([desired, *(n for _, n in _recent(state.proposals, now, up_s))])
    highest = max([desired, *(n for _, n in _recent(state.proposals, now, down_s))])
    kept = _recent(state.proposals, now, max(up_s, down_s))
    stable = min(max(replicas, lowest), highest)
    return stable, replace(state, proposals=(*kept, (now, desired)))


def limit(now: float, replicas: int, desired: int, state: HpaState, policy: ScalingPolicy) -> int:
    """Return the number within the policy's bounds and speed limits."""
    bounded = policy.clamp(desired, max(1, policy.min_replicas))
    if bounded > replicas:
        most = _speed_limit(now, replicas, state, policy.behavior.scale_up, 1)
        return min(bounded, max(most, replicas))
    if bounded < replicas:
        least = _speed_limit(now, replicas, state, policy.behavior.scale_down, -1)
        return max(bounded, min(least, replicas))
    return bounded


def _speed_limit(now: float, replicas: int, state: HpaState, rules: ScalingRules, sign: int) -> int:
    """Return the largest number of replicas for the sign 1, the smallest for -1."""
    if rules.select_policy == "Disabled":
        return replicas
    limits = []
    for rule in rules.policies:
        changed = sum(size for _, size in _recent(state.changes, now, rule.period_seconds))
        start = replicas - changed
        if rule.type == "Pods":
            limits.append(start + sign * rule.value)
        else:
            share = start * (1 + sign * rule.value / 100)
            limits.append(math.ceil(share) if sign > 0 else int(share))
    furthest = (rules.select_policy == "Max") == (sign > 0)
    return max(limits) if furthest else min(limits)


def _by_metrics(
    now: float, replicas: int, samples: Samples, policy: ScalingPolicy
) -> tuple[int | None, str]:
    """Return the largest proposal and its reason; None for no change."""
    targets: list[tuple[str, float, bool]] = [
        (policy.metric, policy.target, policy.target_unit == "percent")
    ]
    targets += [(further.metric, further.target, True) for further in policy.further_metrics]
    found: dict[str, int] = {}
    failed = []
    for metric, target, is_percent in targets:
        desired = proposal(
            now, replicas, samples.get(metric, ()), target,
            tolerance=policy.tolerance, is_percent=is_percent and metric in RESOURCES,
            is_cpu=metric == "cpu",
        )  # fmt: skip
        if desired is None:
            failed.append(metric)
        else:
            found[metric] = max(desired, found.get(metric, 0))
    if not found:
        return None, f"no measurements of {', '.join(failed)}"
    metric = max(found, key=lambda name: found[name])
    if failed and found[metric] < replicas:
        return None, f"no measurements of {', '.join(failed)}, so no replica is removed"
    return found[metric], f"{metric} needs {found[metric]}"


def _decided(
    now: float, before: int, after: int, reason: str, state: HpaState, policy: ScalingPolicy
) -> tuple[Decision, HpaState]:
    if after != before:
        rules = (policy.behavior.scale_up, policy.behavior.scale_down)
        longest = max(rule.period_seconds for each in rules for rule in each.policies)
        kept = _recent(state.changes, now, longest)
        state = replace(state, changes=(*kept, (now, after - before)))
    return Decision(after, reason=reason), state


def _recent(
    items: tuple[tuple[float, int], ...], now: float, period_s: float
) -> tuple[tuple[float, int], ...]:
    """Return the items of a period.

    Times in the future remain if the clock is set back.
    """
    return tuple(item for item in items if now - period_s < item[0] <= now)


def _ratio(
    usages: Sequence[tuple[float, ReplicaSample]], target: float, is_percent: bool
) -> float | None:
    """Return usage divided by target; None without measurements or without requests."""
    used = sum(usage * sample.count for usage, sample in usages)
    if not is_percent:
        return used / sum(sample.count for _, sample in usages) / target if usages else None
    requested = sum(sample.request * sample.count for _, sample in usages)
    # Kubernetes compares whole percentages.
    return int(used * 100 / requested) / target if requested > 0 else None


def _is_unready(now: float, sample: ReplicaSample) -> bool:
    """Return whether a replica is still starting."""
    if sample.started_at + CPU_INITIALIZATION_S > now:
        return not sample.ready or sample.measured_since < sample.ready_since
    return not sample.ready and sample.started_at + READINESS_DELAY_S > sample.ready_since

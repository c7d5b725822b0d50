"""The algorithm of Knative's Pod Autoscaler: by concurrency or requests per second.

`step` computes a number of replicas from two averages of the load, then `_to_zero` delays scaling
to zero. Both follow knative/serving: pkg/autoscaler/scaling and pkg/reconciler/autoscaling/kpa.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from timonel.endpoints.autoscaling.decisions import Decision
from timonel.endpoints.autoscaling.policy import KPA_TICK_S, ScalingPolicy

Activity = Literal["activating", "active", "inactive"]
_DEADLINE_BUFFER_S = 10.0


@dataclass(frozen=True)
class Load:
    """Input of one step.

    Args:
        stable: Load of all replicas, averaged over the window; None without any data.
        reachable: Whether the endpoint has traffic at all; an old revision has none.
    """

    stable: float | None
    panic: float | None
    ready: int
    replicas: int
    reachable: bool = True
    activator_in_path: bool = False


@dataclass(frozen=True)
class KpaState:
    """State between two steps; times are in Unix seconds.

    Args:
        panic_at: When the load last exceeded the panic threshold; None outside of panic.
        delayed: Times and numbers of replicas within the scale-down delay, numbers decreasing.
        activity: Whether the endpoint serves, waits for its first replica, or goes to zero.
        in_path_since: Time from which the activator receives the requests.
    """

    panic_at: float | None = None
    panic_replicas: int = 0
    delayed: tuple[tuple[float, int], ...] = ()
    activity: Activity = "activating"
    activity_since: float = 0.0
    in_path_since: float | None = None
    initialized: bool = False

    @classmethod
    def begin(cls, now: float, policy: ScalingPolicy, ready: int = 0) -> KpaState:
        """Return the state of an autoscaler without history.

        With more than one replica it begins in panic mode, so that none stops before enough load
        was measured.
        """
        panic_at = now if ready > 1 else None
        activity: Activity = "activating" if policy.initial_replicas or ready else "inactive"
        return cls(panic_at, ready, activity=activity, activity_since=now, initialized=ready > 0)


def step(
    now: float, load: Load, state: KpaState, policy: ScalingPolicy, forecast: int = 0
) -> tuple[Decision, KpaState]:
    """Decide the number of replicas.

    Args:
        now: Unix time, in seconds.
        policy: Policy with the algorithm ``kpa``.
        forecast: Smallest number of replicas by the forecast.
    """
    state = _not_after(now, state)
    desired, reason = None, "no measurements yet"
    if load.stable is not None and load.panic is not None:
        desired, reason, state = _by_load(now, load.stable, load.panic, load, state, policy)
    least = policy.min_replicas if load.reachable else 0
    if not state.initialized and not _is_overdue(now, state, policy):
        least = max(least, policy.initial_replicas)
    if desired is None:
        applied = policy.clamp(load.replicas, least) if not state.initialized else load.replicas
    else:
        if forecast > desired:
            desired, reason = forecast, f"forecast needs {forecast}; {reason}"
        bounded = policy.clamp(desired, least)
        if bounded != desired:
            reason = f"{reason}; {_bound(bounded, desired, state)}"
        desired, applied, why = _to_zero(now, bounded, load, state, policy)
        reason = f"{reason}; {why}" if why else reason
    state = _with_activity(now, desired, load, state, policy)
    excess = _excess_burst(load, policy)
    via = desired == 0 or excess < 0 or (desired is None and state.activity == "inactive")
    in_path = via and (load.activator_in_path or policy.target_burst_capacity == -1)
    since = (now if state.in_path_since is None else state.in_path_since) if in_path else None
    if since != state.in_path_since:
        state = replace(state, in_path_since=since)
    return Decision(applied, via, state.panic_at is not None, reason, excess), state


def _bound(bounded: int, desired: int, state: KpaState) -> str:
    """Return why another number than the load needs is set."""
    replicas = "1 replica" if bounded == 1 else f"{bounded} replicas"
    if bounded < desired:
        return f"limited to the maximum of {replicas}"
    return f"keeping {'the minimum of ' if state.initialized else ''}{replicas}" + (
        "" if state.initialized else " until ready"
    )


def _not_after(now: float, state: KpaState) -> KpaState:
    """Return the state without times in the future.

    They remain if the clock is set back.
    """
    times = (state.panic_at, state.in_path_since, state.activity_since, *dict(state.delayed))
    if max(time or 0.0 for time in times) <= now:
        return state
    return replace(
        state,
        panic_at=None if state.panic_at is None else min(now, state.panic_at),
        in_path_since=None if state.in_path_since is None else min(now, state.in_path_since),
        activity_since=min(now, state.activity_since),
        delayed=tuple((min(now, at), count) for at, count in state.delayed),
    )


def _by_load(
    now: float, stable: float, panic: float, load: Load, state: KpaState, policy: ScalingPolicy
) -> tuple[int, str, KpaState]:
    """Return the number of replicas for the load, its reason, and the new state."""
    ready, target = max(1, load.ready), policy.load_per_replica
    most = math.ceil(policy.max_scale_up_rate * ready)
    least = math.floor(ready / policy.max_scale_down_rate) if load.reachable else 0
    by_stable, by_panic = math.ceil(stable / target), math.ceil(panic / target)

    def limited(replicas: int) -> int:
        bounded = min(max(replicas, least), most)
        return max(bounded, policy.activation_replicas) if replicas else bounded

    state = _with_panic(now, by_panic / ready, state, policy)
    desired = limited(by_stable)
    reason = f"{policy.metric} {stable:.4g}, {target:.4g} per replica: needs {desired}"
    if not stable and not desired:
        reason = "no load"
    if by_stable != desired:
        reason = f"{policy.metric} {stable:.4g} needs {by_stable}, limited to {desired} in one step"
    if state.panic_at is not None:
        highest = max(desired, limited(by_panic), state.panic_replicas)
        state = replace(state, panic_replicas=highest)
        desired = highest
        reason = (
            f"panic: {policy.metric} {panic:.4g} in {policy.panic_window_s:.4g}s, holds {desired}"
        )
    if not policy.scale_down_delay_s or not load.reachable:
        return desired, reason, replace(state, delayed=()) if state.delayed else state
    state = replace(state, delayed=_delayed(now, desired, state.delayed, policy.scale_down_delay_s))
    held = state.delayed[0][1]
    if held > desired:
        reason = f"{reason}; {held} are held for the scale-down delay"
    return held, reason, state


def _with_panic(now: float, pressure: float, state: KpaState, policy: ScalingPolicy) -> KpaState:
    if pressure >= policy.panic_threshold_percent / 100:
        return replace(state, panic_at=now)
    if state.panic_at is not None and state.panic_at + policy.window_s < now:
        return replace(state, panic_at=None, panic_replicas=0)
    return state


def _delayed(
    now: float, desired: int, kept: tuple[tuple[float, int], ...], delay_s: float
) -> tuple[tuple[float, int], ...]:
    """Return candidates for the maximum within the delay, in decreasing order."""
    oldest = math.floor(now / KPA_TICK_S) - math.ceil(delay_s / KPA_TICK_S)
    valid = ((at, n) for at, n in kept if n > desired and math.floor(at / KPA_TICK_S) > oldest)
    return (*valid, (now, desired))


def _excess_burst(load: Load, policy: ScalingPolicy) -> int:
    """Return the spare capacity beyond the target burst capacity."""
    if policy.target_burst_capacity <= 0:
        return -1 if policy.target_burst_capacity < 0 else 0
    free = load.ready * policy.capacity - (load.panic or 0.0)
    return math.floor(free - policy.target_burst_capacity)


def _to_zero(
    now: float, desired: int, load: Load, state: KpaState, policy: ScalingPolicy
) -> tuple[int | None, int, str]:
    """Delay scaling to zero if no replica is needed.

    Returns:
        The number of replicas needed, None if unknown; the number to set; a reason.
    """
    if desired or not policy.scale_to_zero:
        kept = max(desired, 1)
        return kept, kept, "" if desired else "one remains, as scaling to zero is off"
    since_s = now - state.activity_since
    if state.activity == "inactive":
        blocked = _wait_for_zero(now, since_s, load, state, policy)
        return 0, load.replicas if blocked else 0, blocked
    if state.activity == "active" and since_s < policy.window_s:
        return 1, 1, f"keeping 1 replica for the first {policy.window_s:.4g} s"
    if state.activity == "active":
        return 0, load.replicas, "becomes inactive; the activator takes the requests"
    if _is_overdue(now, state, policy):
        return 0, 0, "no replica became ready within the deadline"
    return None, load.replicas, "waits for the first replica"


def _wait_for_zero(
    now: float, inactive_s: float, load: Load, state: KpaState, policy: ScalingPolicy
) -> str:
    """Return why the last replica of an inactive endpoint must keep running."""
    if not load.activator_in_path and policy.target_burst_capacity != -1:
        return "waits for the activator"
    if inactive_s < policy.retention_s:
        return f"the last replica is kept for {policy.retention_s:.4g}s"
    in_path_s = 0.0 if state.in_path_since is None else now - state.in_path_since
    if max(inactive_s, in_path_s) < policy.scale_to_zero_grace_s:
        return f"waits {policy.scale_to_zero_grace_s:.4g}s behind the activator"
    return ""


def _is_overdue(now: float, state: KpaState, policy: ScalingPolicy) -> bool:
    deadline_s = policy.progress_deadline_s + _DEADLINE_BUFFER_S
    return state.activity == "activating" and now - state.activity_since > deadline_s


def _with_activity(
    now: float, desired: int | None, load: Load, state: KpaState, policy: ScalingPolicy
) -> KpaState:
    needed = max(1, policy.min_replicas if load.reachable else 0)
    if not state.initialized:
        needed = max(needed, policy.initial_replicas)
    initialized = state.initialized or (load.ready >= needed and desired != 0)
    activity: Activity = state.activity
    if desired == 0:
        activity, initialized = "inactive", True
    elif desired or state.activity != "inactive":
        activity = "active" if load.ready >= needed else "activating"
    if (activity, initialized) == (state.activity, state.initialized):
        return state
    since = state.activity_since if activity == state.activity else now
    return replace(state, activity=activity, activity_since=since, initialized=initialized)

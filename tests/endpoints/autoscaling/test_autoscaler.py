"""The whole autoscaler: measurements in, decisions out, restarts."""

from __future__ import annotations

import pytest

from timonel.endpoints import autoscaling
from timonel.endpoints.autoscaling import (
    AutoscalerState,
    Replicas,
    ReplicaSample,
    ScalingPolicy,
    decide,
    record,
)
from timonel.errors import FormatError

NOW = 1_000_000.0
POLICY = ScalingPolicy(target=10, target_burst_capacity=0)


def test_the_names_are_pinned() -> None:
    assert autoscaling.__all__ == [
        "AutoscalerState",
        "Decision",
        "ReplicaSample",
        "Replicas",
        "ScalingPolicy",
        "decide",
        "record",
    ]


def loaded(load: float, seconds: int, policy: ScalingPolicy = POLICY) -> AutoscalerState:
    """Return the state after a constant load that ends now."""
    state = AutoscalerState.begin(NOW - seconds, policy)
    for second in range(seconds):
        state = record(NOW - seconds + second, load, state, policy)
    return state


def test_a_report_from_zero_counts_at_once() -> None:
    state = record(NOW, 0.5, loaded(0, 120), POLICY)
    decision, _ = decide(NOW, Replicas(requested=0, ready=0), state, POLICY)
    assert decision.replicas == 1


def test_the_state_survives_as_json() -> None:
    policy = POLICY.model_copy(update={"scale_down_delay_s": 60.0})
    policy = ScalingPolicy(**policy.model_dump() | {"forecast": {}})
    state = loaded(300, 120, policy)
    _, state = decide(NOW, Replicas(requested=4, ready=4), state, policy)
    assert state.kpa.panic_at == NOW
    assert AutoscalerState.from_json(state.to_json()) == state


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"stable": {"size": "x"}}'])
def test_a_damaged_state_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="delete it"):
        AutoscalerState.from_json(text)


def test_the_state_of_hpa_survives_as_json() -> None:
    policy = ScalingPolicy(metric="cpu", target=50)
    busy = {"cpu": [ReplicaSample(900, 1000, count=3)]}
    state = AutoscalerState.begin(NOW, policy, 3)
    decision, state = decide(NOW, Replicas(3, 3, samples=busy), state, policy)
    assert decision.replicas == 6
    assert AutoscalerState.from_json(state.to_json()) == state


def test_a_restart_removes_no_replica_before_it_has_measured() -> None:
    state = loaded(69, 120)
    replicas = Replicas(requested=10, ready=10)
    later = NOW + 30
    resumed = state.resume(later, POLICY, ready=10)
    decision, resumed = decide(later, replicas, resumed, POLICY)
    assert decision.replicas == 10
    for second in range(62):
        resumed = record(later + second, 7.0, resumed, POLICY)
        decision, resumed = decide(later + second, replicas, resumed, POLICY)
        assert (decision.replicas < 10) is (second > POLICY.window_s)


@pytest.mark.parametrize("ready", [0, 1, 2])
def test_a_restart_with_several_replicas_begins_in_panic(ready: int) -> None:
    resumed = loaded(69, 120).resume(NOW + 30, POLICY, ready)
    assert (resumed.kpa.panic_at is not None) is (ready > 1)
    assert resumed.stable.average(NOW + 30) is None


def test_a_restart_in_panic_holds_the_replicas_that_are_starting() -> None:
    _, state = decide(NOW, Replicas(10, 10), loaded(690, 120), POLICY)
    resumed = record(NOW + 30, 7.0, state.resume(NOW + 30, POLICY, ready=10), POLICY)
    decision, _ = decide(NOW + 30, Replicas(99, 10), resumed, POLICY)
    assert (decision.replicas, decision.panicking) == (99, True)


def test_a_short_restart_keeps_the_averages() -> None:
    state = loaded(69, 120)
    assert state.resume(NOW + 5, POLICY, ready=10) is state


def test_an_idle_endpoint_stays_at_zero_after_a_restart() -> None:
    state, requested, now = loaded(0, 1), 1, NOW
    for _ in range(400):
        now += 2
        state = record(now, 0, state, POLICY)
        replicas = Replicas(requested, ready=requested, activator_in_path=True)
        decision, state = decide(now, replicas, state, POLICY)
        requested = decision.replicas
    assert requested == 0
    resumed = AutoscalerState.from_json(state.to_json()).resume(now + 999, POLICY, ready=0)
    decision, _ = decide(now + 999, Replicas(0, 0), resumed, POLICY)
    assert (decision.replicas, decision.through_activator) == (0, True)


def test_a_new_window_counts_at_once() -> None:
    state = loaded(69, 120)
    policy = POLICY.model_copy(update={"window_s": 30.0})
    assert len(record(NOW, 69, state, policy).stable.sums) == 30


@pytest.mark.parametrize("load", [-1.0, float("nan"), float("inf")])
def test_a_value_that_is_no_measurement_is_ignored(load: float) -> None:
    state = loaded(69, 120)
    assert record(NOW, load, state, POLICY) is state


@pytest.mark.parametrize("back_s", [30, 3600, 86400])
def test_a_clock_that_is_set_back_does_not_stop_the_autoscaler(back_s: float) -> None:
    policy = POLICY.model_copy(update={"scale_down_delay_s": 30.0})
    state = loaded(690, 120, policy)
    decision, state = decide(NOW, Replicas(requested=20, ready=20), state, policy)
    assert decision.panicking
    requested = decision.replicas
    for second in range(300):
        now = NOW - back_s + second
        state = record(now, 7.0, state, policy)
        decision, state = decide(now, Replicas(requested, requested), state, policy)
        requested = decision.replicas
    assert (requested, decision.panicking) == (1, False)


def test_a_clock_that_is_set_back_does_not_stop_hpa() -> None:
    policy = ScalingPolicy(metric="cpu", target=50)
    state, requested = AutoscalerState.begin(NOW, policy, 8), 8
    for at, load in [(NOW, 900.0), *((NOW - 3600 + 15 * tick, 50.0) for tick in range(40))]:
        samples = {"cpu": [ReplicaSample(load, 1000, count=requested)]}
        replicas = Replicas(requested, requested, samples=samples)
        decision, state = decide(at, replicas, state, policy)
        requested = decision.replicas
    assert requested == 1


def test_replicas_are_taken_to_have_traffic() -> None:
    kept = POLICY.model_copy(update={"min_replicas": 2})
    idle = loaded(0, 120, kept)
    assert decide(NOW, Replicas(requested=2, ready=2), idle, kept)[0].replicas == 2
    unreachable = Replicas(requested=2, ready=2, reachable=False)
    assert decide(NOW, unreachable, idle, kept)[0].replicas < 2

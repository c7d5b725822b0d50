"""KPA: conformance with Knative, zero, and properties.

Inputs and expected numbers of the tables are those of knative/serving after release 1.18:
pkg/autoscaler/scaling/autoscaler_test.go (commit 01f103ef) and
pkg/reconciler/autoscaling/kpa/scaler_test.go (since per-revision progress deadlines).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.endpoints.autoscaling.decisions import Decision
from timonel.endpoints.autoscaling.kpa import KpaState, Load, step
from timonel.endpoints.autoscaling.policy import ScalingPolicy

NOW = 1_000_000.0
GRACE, WINDOW = 60.0, 60.0


def policy_of(target: float, burst: float, **fields: Any) -> ScalingPolicy:
    """Return the policy of the tables: 75 % utilization, rates of 10."""
    values = {
        "target": target / 0.75,
        "utilization_percent": 75,
        "target_burst_capacity": burst,
        "max_scale_up_rate": 10,
        "max_scale_down_rate": 10,
        "initial_replicas": 0,
        "progress_deadline_s": 1e9,
        **fields,
    }
    return ScalingPolicy(**values)


def active(since: float = NOW - 10 * WINDOW, **fields: Any) -> KpaState:
    return KpaState(activity="active", activity_since=since, initialized=True, **fields)


def scaled(
    policy: ScalingPolicy,
    stable: float | None,
    panic: float | None,
    ready: int,
    state: KpaState,
    now: float = NOW,
    *,
    reachable: bool = True,
) -> tuple[Decision, KpaState]:
    return step(now, Load(stable, panic, ready, ready, reachable), state, policy)


def burst(target: float, burst: float, panic: float, ready: int) -> int:
    """Return the excess burst capacity that the tables expect."""
    return math.floor(target / 0.75 * ready - burst - panic)


@pytest.mark.parametrize(
    ("target", "tbc", "stable", "panic", "ready", "replicas", "fields"),
    [
        (181, -1, 21, 26, 1, 1, {}),
        (10, 0, 50, 49, 1, 5, {}),
        (10, 100, 50, 50, 1, 5, {}),
        (10, 100, 50, 50, 5, 5, {}),
        (1, 1982, 3, 3.1, 2, 3, {"max_scale_up_rate": 1.1}),
        (10, 1982, 1, 1, 100, 90, {"max_scale_down_rate": 1.1}),
        (10, 84, 50, 100, 1, 10, {}),
        (10, 101, 50, 10, 1, 5, {}),
        (10, 101, 100, 10, 1, 10, {}),
        (10, 98, 100, 100, 8, 10, {}),
        (10, 98, 50, 50, 8, 5, {}),
        (10, 75, 1, 0, 1, 1, {}),
        (10, 61, 1000, 1001, 1, 10, {}),  # the rate limit
        (10, 61, 1000, 1001, 10, 100, {}),
        (10, 61, 1, 1, 100, 10, {}),
        (10, 61, 1, 1, 10, 1, {}),
        (10, 81, 1000, 888, 0, 10, {}),  # no replica is ready
        (10, 75, 1, 0, 1, 2, {"activation_replicas": 2}),
        (10, 101, 50, 50, 1, 5, {"metric": "rps"}),
        (10, 101, 100, 99, 1, 10, {"metric": "rps"}),
    ],
)
def test_autoscaler_table(
    target: float,
    tbc: float,
    stable: float,
    panic: float,
    ready: int,
    replicas: int,
    fields: dict[str, Any],
) -> None:
    decision, _ = scaled(policy_of(target, tbc, **fields), stable, panic, ready, active())
    assert decision.replicas == replicas
    expected = burst(target, tbc, panic, ready) if tbc > 0 else tbc
    assert decision.excess_burst == pytest.approx(expected, abs=1)
    assert decision.through_activator is (decision.excess_burst < 0)


def test_an_unreachable_revision_is_not_slowed_down() -> None:
    policy = policy_of(10, 1982, max_scale_down_rate=1.1, min_replicas=5)
    assert scaled(policy, 1, 1, 100, active(), reachable=False)[0].replicas == 1


@pytest.mark.parametrize(("stable", "panic", "replicas"), [(50, 30, 50), (20, 30, 30)])
def test_panic_takes_the_larger_average(stable: float, panic: float, replicas: int) -> None:
    state = active(panic_at=NOW - 5, panic_replicas=5)
    assert scaled(policy_of(1, 100), stable, panic, 5, state)[0].replicas == replicas


def test_panic_ends_after_a_slow_increase() -> None:
    policy = policy_of(1, 98)
    decision, state = scaled(policy, 11, 25, 10, active())
    assert (decision.replicas, state.panic_at) == (25, NOW)
    decision, state = scaled(policy, 30, 41, 25 + 15, state, NOW + 30)
    assert (decision.replicas, state.panic_at) == (41, NOW)
    decision, state = scaled(policy, 50, 56, 25 + 30, state, NOW + 62)
    assert (decision.replicas, state.panic_at) == (50, None)


def test_continued_growth_extends_panic() -> None:
    policy = policy_of(1, 98)
    _, state = scaled(policy, 11, 25, 10, active())
    decision, state = scaled(policy, 30, 80, 25 + 15, state, NOW + 30)
    assert (decision.replicas, state.panic_at) == (80, NOW + 30)


def test_exponential_growth() -> None:
    policy, state = policy_of(1, 101), active()
    for second, (load, ready) in enumerate(((6, 1), (36, 6), (216, 36), (1296, 216))):
        decision, state = scaled(policy, load, load, ready, state, NOW + second)
        assert (decision.replicas, state.panic_at) == (load, NOW + second)
    decision, _ = scaled(policy, 1296, 1296, 1296, state, NOW + 4)
    assert decision.replicas == 1296


def test_panic_then_scale_down() -> None:
    policy = policy_of(10, 93)
    assert scaled(policy, 100, 100, 1, active())[0].replicas == 10
    decision, state = scaled(policy, 100, 1000, 10, active())
    assert (decision.replicas, decision.panicking) == (100, True)
    decision, state = scaled(policy, 1, 1, 10, state, NOW + 30)
    assert decision.replicas == 100
    decision, state = scaled(policy, 1, 1, 10, state, NOW + 61)
    assert (decision.replicas, decision.panicking) == (1, False)


@pytest.mark.parametrize("ready", [0, 1, 2])
def test_start_in_panic(ready: int) -> None:
    state = KpaState.begin(NOW, policy_of(100, 11), ready)
    assert (state.panic_at is not None) is (ready > 1)
    assert state.panic_replicas == ready


@pytest.mark.parametrize(
    ("initial", "ready", "activity"),
    [(0, 0, "inactive"), (0, 1, "activating"), (1, 0, "activating")],
)
def test_an_endpoint_without_initial_replicas_begins_at_zero(
    initial: int, ready: int, activity: str
) -> None:
    state = KpaState.begin(NOW, ScalingPolicy(initial_replicas=initial), ready)
    assert (state.activity, state.activity_since) == (activity, NOW)


def test_scale_down_delay() -> None:
    policy = policy_of(10, 0, scale_down_delay_s=300, panic_threshold_percent=1000)
    state, found = active(since=-1e6), []
    for now, load in (
        (2, 40), (300, 0), (302, 0),
        (540, 40), (600, 30), (660, 0), (840, 0), (900, 0),
    ):  # fmt: skip
        decision, state = scaled(policy, load, load, 0, state, now)
        found.append(0 if decision.through_activator else decision.replicas)
    assert found == [4, 4, 0, 4, 4, 4, 3, 0]


def test_a_constant_load_does_not_fill_the_scale_down_delay() -> None:
    policy, state = policy_of(10, 0, scale_down_delay_s=300), active()
    for second in range(0, 300, 2):
        _, state = scaled(policy, 40, 40, 4, state, NOW + second)
    assert state.delayed == ((NOW + 298, 4),)


def test_an_unreachable_revision_has_no_scale_down_delay() -> None:
    policy = policy_of(10, 0, scale_down_delay_s=300)
    _, state = scaled(policy, 40, 40, 1, active())
    assert scaled(policy, 0, 0, 1, state, NOW + 60)[0].replicas == 4
    decision, state = scaled(policy, 0, 0, 1, state, NOW + 62, reachable=False)
    assert (decision.through_activator, state.activity) == (True, "inactive")


def test_without_a_delay_the_latest_number_counts() -> None:
    policy = policy_of(10, 0)
    assert scaled(policy, 40, 40, 0, active())[0].replicas == 4
    assert scaled(policy, 20, 20, 0, active(), NOW + 0.5)[0].replicas == 2


def test_no_data_changes_nothing() -> None:
    decision, state = scaled(policy_of(10, 100), None, None, 12, active())
    assert (decision.replicas, state) == (12, active())


def at(activity: Any, ago_s: float, **fields: Any) -> KpaState:
    return KpaState(
        activity=activity, activity_since=NOW - ago_s, **{"initialized": True, **fields}
    )


ACTIVATION = 600.0 + 10.0
ZERO = 0.0


@pytest.mark.parametrize(
    ("start", "load", "replicas", "state", "fields"),
    [
        pytest.param(1, 0, 1, at("active", WINDOW - 1), {}, id="before the idle period"),
        pytest.param(
            1, 0, 1, at("active", 299), {"window_s": 300}, id="before the idle period, own window"
        ),
        pytest.param(10, 0, 1, at("active", WINDOW - 1), {}, id="1 until the idle period ends"),
        pytest.param(1, 0, 1, at("active", WINDOW), {}, id="inactive after the idle period"),
        pytest.param(1, 0, 0, at("inactive", GRACE), {}, id="after the grace period"),
        pytest.param(
            1, 0, 1, at("inactive", GRACE), {"retention_s": 2 * GRACE}, id="before retention ends"
        ),
        pytest.param(1, 0, 0, at("inactive", GRACE), {"retention_s": GRACE}, id="after retention"),
        pytest.param(1, 0, 1, at("inactive", GRACE - 1), {}, id="before the grace period ends"),
        pytest.param(
            1, 0, 1, at("inactive", GRACE - 1, in_path_since=NOW - GRACE + 1), {}, id="proxy short"
        ),
        pytest.param(
            1, 0, 0, at("inactive", GRACE - 1, in_path_since=NOW - GRACE), {}, id="proxy long"
        ),
        pytest.param(
            1, 0, 0, at("inactive", GRACE - 1, in_path_since=NOW - GRACE), {"retention_s": 42},
            id="proxy long, retention over",
        ),
        pytest.param(
            1, 0, 0, at("inactive", GRACE), {"target_burst_capacity": -1, "probe": False},
            id="always behind the activator",
        ),
        pytest.param(1, 0, 1, at("inactive", GRACE), {"probe": False}, id="the probe fails"),
        pytest.param(1, 0, 1, at("activating", ACTIVATION / 2), {}, id="activating"),
        pytest.param(1, 0, 0, at("activating", ACTIVATION + 1), {}, id="activation failed"),
        pytest.param(
            1, 0, 0, at("activating", 16), {"progress_deadline_s": 5}, id="own deadline"
        ),
        pytest.param(10, 0, 2, at("inactive", GRACE - 1), {"min_replicas": 2}, id="minimum"),
        pytest.param(10, 0, 2, at("inactive", GRACE), {"min_replicas": 2}, id="minimum, later"),
        pytest.param(
            10, 0, 0, at("inactive", GRACE), {"min_replicas": 2, "reachable": False},
            id="no minimum if unreachable",
        ),
        pytest.param(1, 10, 10, at("active", ZERO), {}, id="up"),
        pytest.param(1, 10, 8, at("active", ZERO), {"max_replicas": 8}, id="up to the maximum"),
        pytest.param(1, 10, 10, at("inactive", GRACE / 2), {}, id="up while inactive"),
        pytest.param(0, None, 0, at("inactive", ZERO), {}, id="at zero without metrics"),
        pytest.param(0, 1, 1, at("inactive", ZERO), {}, id="from zero to one"),
        pytest.param(0, 10, 10, at("inactive", ZERO), {}, id="from zero to many"),
        pytest.param(12, None, 12, at("active", ZERO), {}, id="no metrics"),
        pytest.param(
            2, 0, 1, at("active", 120), {"initial_replicas": 2, "window_s": 300},
            id="initial number was reached",
        ),
        pytest.param(
            0, 1, 2, at("activating", ZERO, initialized=False), {"initial_replicas": 2},
            id="initial number overrides",
        ),
        pytest.param(
            5, 1, 5, at("activating", ZERO, initialized=False), {"initial_replicas": 5},
            id="initial number is reached",
        ),
        pytest.param(0, 0, 0, at("inactive", ZERO), {"initial_replicas": 0}, id="begins at zero"),
        pytest.param(10, 0, 1, at("active", ZERO), {"scale_to_zero": False}, id="zero is off"),
        pytest.param(
            10, 0, 2, at("active", ZERO), {"scale_to_zero": False, "min_replicas": 2},
            id="zero is off, minimum",
        ),
    ],
)  # fmt: skip
def test_scaler_table(
    start: int, load: float | None, replicas: int, state: KpaState, fields: dict[str, Any]
) -> None:
    """A load of n wants n replicas; one that the tables do not set stays at the start's number."""
    fields = dict(fields)
    probe, reachable = fields.pop("probe", True), fields.pop("reachable", True)
    policy = policy_of(
        1, fields.pop("target_burst_capacity", 0),
        **{"scale_to_zero_grace_s": GRACE, "progress_deadline_s": 600,
           "max_scale_down_rate": 1000, **fields},
    )  # fmt: skip
    given_load = Load(load, load, start, start, reachable, probe)
    assert step(NOW, given_load, state, policy)[0].replicas == replicas


def test_the_whole_way_to_zero_and_back() -> None:
    policy = ScalingPolicy(target_burst_capacity=0)
    state, replicas, seen = KpaState.begin(NOW, policy), 0, []
    for second in range(0, 200, 2):
        load = 1.0 if second < 40 else 0.0
        in_path = bool(seen) and seen[-1][1]
        ready = replicas if second >= 10 else 0
        decision, state = step(
            NOW + second, Load(load, load, ready, replicas, True, in_path), state, policy
        )
        replicas = decision.replicas
        seen.append((replicas, decision.through_activator, state.activity))
    changes = [(2 * i, now) for i, now in enumerate(seen) if i == 0 or now != seen[i - 1]]
    assert changes == [
        (0, (1, False, "activating")),
        (10, (1, False, "active")),
        (70, (1, True, "inactive")),  # active for a window
        (100, (0, True, "inactive")),  # after the grace period
    ]
    decision, state = step(NOW + 201, Load(1, 1, 0, 0, True, True), state, policy)
    assert (decision.replicas, decision.through_activator) == (1, False)
    assert state.activity == "activating"


def test_an_endpoint_always_behind_the_activator_needs_no_grace_period() -> None:
    policy = ScalingPolicy(target_burst_capacity=-1)
    _, state = step(NOW, Load(1, 1, 1, 1), active(), policy)
    decision, state = step(NOW + 100, Load(0, 0, 1, 1), state, policy)
    assert (decision.replicas, state.activity) == (1, "inactive")
    assert step(NOW + 102, Load(0, 0, 1, 1), state, policy)[0].replicas == 0


@pytest.mark.parametrize("load", [None, 0.0])
def test_idle_replicas_are_spare_capacity_for_a_burst(load: float | None) -> None:
    policy = ScalingPolicy(target=100, target_burst_capacity=211)
    assert step(NOW, Load(load, load, 3, 3), active(), policy)[0].excess_burst == 300 - 211


@pytest.mark.parametrize(("capacity", "excess"), [(0, 0), (1, -1), (-1, -1)])
def test_the_activator_absorbs_a_burst_that_replicas_cannot(capacity: int, excess: int) -> None:
    policy = ScalingPolicy(target=10, target_burst_capacity=capacity)
    decision, _ = step(NOW, Load(10, 10, 1, 1), active(), policy)
    assert (decision.excess_burst, decision.through_activator) == (excess, excess < 0)


def test_a_forecast_only_adds_replicas() -> None:
    policy = ScalingPolicy(target=10, max_replicas=20)
    load = Load(35, 35, 5, 5)
    assert step(NOW, load, active(), policy)[0].replicas == 5
    decision = step(NOW, load, active(), policy, forecast=9)[0]
    assert decision.replicas == 9
    assert "forecast needs 9" in decision.reason
    assert step(NOW, load, active(), policy, forecast=2)[0].replicas == 5
    assert step(NOW, load, active(), policy, forecast=99)[0].replicas == 20


@pytest.mark.parametrize(
    ("fields", "initialized", "ready", "activity"),
    [
        ({}, True, 0, "activating"),
        ({}, True, 1, "active"),
        ({"min_replicas": 2}, True, 1, "activating"),
        ({"min_replicas": 2}, True, 2, "active"),
        ({"initial_replicas": 3}, False, 2, "activating"),
        ({"initial_replicas": 3}, False, 3, "active"),
    ],
)
@pytest.mark.parametrize("load", [None, 1.0])
def test_an_endpoint_is_active_once_enough_replicas_are_ready(
    fields: dict[str, int], initialized: bool, ready: int, activity: str, load: float | None
) -> None:
    state = at("activating", 5, initialized=initialized)
    _, after = step(NOW, Load(load, load, ready, 3), state, ScalingPolicy(**fields))
    assert after.activity == activity
    assert after.initialized is (initialized or activity == "active")
    assert after.activity_since == (NOW if activity == "active" else NOW - 5)


def test_a_new_panic_does_not_know_the_last_one() -> None:
    policy = policy_of(1, 0)
    _, state = scaled(policy, 50, 50, 10, active())
    _, state = scaled(policy, 5, 5, 10, state, NOW + 61)
    decision, state = scaled(policy, 5, 20, 10, state, NOW + 63)
    assert (decision.replicas, decision.panicking) == (20, True)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(None, None, 2, 2), "no measurements yet"),
        (Load(35, 35, 4, 4), "concurrency 35, 7 per replica: needs 5"),
        (Load(35, 350, 4, 4), "panic: concurrency 350 in 6s, holds 50"),
        (Load(3500, 3500, 4, 4), "holds 500; limited to the maximum of 60 replicas"),
        (Load(1, 1, 20, 20), "needs 1, limited to 10 in one step"),
    ],
)
def test_reasons(load: Load, words: str) -> None:
    policy = ScalingPolicy(target=10, max_replicas=60)
    assert words in step(NOW, load, active(), policy)[0].reason


@pytest.mark.parametrize(
    ("fields", "state", "reason"),
    [
        ({}, KpaState.begin(NOW, ScalingPolicy()), "no load; keeping 1 replica until ready"),
        ({}, active(NOW), "no load; keeping 1 replica for the first 60 s"),
        ({"min_replicas": 2}, active(), "no load; keeping the minimum of 2 replicas"),
    ],
)
def test_reasons_without_load(fields: dict[str, Any], state: KpaState, reason: str) -> None:
    policy = ScalingPolicy(target=10, **fields)
    assert step(NOW, Load(0, 0, 1, 1), state, policy)[0].reason == reason


loads = st.floats(0, 1e5)
policies = st.builds(
    ScalingPolicy,
    target=st.floats(0.01, 1000),
    min_replicas=st.integers(0, 5),
    max_replicas=st.one_of(st.just(0), st.integers(5, 1000)),
    max_scale_up_rate=st.floats(1.01, 1000),
    max_scale_down_rate=st.floats(1.01, 1000),
    panic_threshold_percent=st.floats(110, 1000),
    scale_down_delay_s=st.sampled_from([0, 30, 300]),
    target_burst_capacity=st.sampled_from([-1, 0, 50, 211]),
    scale_to_zero=st.booleans(),
)
states = st.builds(
    lambda activity, ago, panic, peak: at(
        activity, ago, panic_at=NOW - panic if panic else None, panic_replicas=peak if panic else 0
    ),
    st.sampled_from(["active", "inactive", "activating"]),
    st.floats(0, 1000),
    st.one_of(st.none(), st.floats(0, 100)),
    st.integers(0, 50),
)


@given(policies, states, loads, loads, st.integers(0, 200))
def test_the_bounds_hold(
    policy: ScalingPolicy, state: KpaState, stable: float, panic: float, ready: int
) -> None:
    requested = policy.clamp(ready)
    decision, after = step(NOW, Load(stable, panic, ready, requested), state, policy)
    assert decision.replicas >= policy.min_replicas
    assert decision.replicas <= (policy.max_replicas or math.inf)
    assert decision.reason
    if decision.replicas == 0:
        assert decision.through_activator
    if decision.panicking and state.panic_at is not None:
        assert after.panic_replicas >= state.panic_replicas


@given(policies, states, loads, loads, st.integers(1, 200), st.floats(1, 10))
def test_more_load_never_means_fewer_replicas(
    policy: ScalingPolicy, state: KpaState, stable: float, panic: float, ready: int, factor: float
) -> None:
    # A number that is only held, before the last replica stops, is no answer to the load.
    state = replace(state, activity="active")
    requested = policy.clamp(ready)
    less = step(NOW, Load(stable, panic, ready, requested), state, policy)
    more = step(NOW, Load(stable * factor, panic * factor, ready, requested), state, policy)
    if less[1].activity != "inactive" and more[1].panic_at == less[1].panic_at:
        assert more[0].replicas >= less[0].replicas


@given(st.lists(loads, min_size=1, max_size=60), policies)
def test_panic_never_decreases(series: list[float], policy: ScalingPolicy) -> None:
    state, replicas, before = active(), 1, None
    for tick, load in enumerate(series):
        decision, state = step(NOW + 2 * tick, Load(load, load, replicas, replicas), state, policy)
        if before and before.panicking and decision.panicking and load:
            assert decision.replicas >= before.replicas
        replicas, before = decision.replicas, decision

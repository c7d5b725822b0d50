"""HPA: conformance with Kubernetes, several metrics, and properties.

Inputs and expected numbers of the tables are those of kubernetes/kubernetes, directory
pkg/controller/podautoscaler: replica_calculator_test.go, and horizontal_test.go of release 1.18
(commit 4e62298c), except that stabilization is that of later releases, which consider both
directions at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.endpoints.autoscaling.hpa import (
    HpaState,
    ReplicaSample,
    limit,
    proposal,
    stabilize,
    step,
)
from timonel.endpoints.autoscaling.policy import Behavior, ScalingPolicy

NOW = 1_000_000.0


def samples(
    levels: Sequence[float | None], *, unready: Sequence[int] = (), requests: float = 1000
) -> list[ReplicaSample]:
    """Return one sample for each level; the unready ones have never been ready."""
    return [
        ReplicaSample(
            level, requests, ready=i not in unready,
            started_at=NOW - 30 if i in unready else NOW - 9999,
        )
        for i, level in enumerate(levels)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("replicas", "levels", "unready", "target", "wanted"),
    [
        pytest.param(3, (300, 500, 700), (), 30, 5, id="up"),
        pytest.param(3, (300, 500, 700), (0,), 30, 4, id="up less with an unready one"),
        pytest.param(3, (400, 500, 700), (1, 2), 30, 3, id="not up with unready ones"),
        pytest.param(5, (100, 300, 500, 250, 250), (), 50, 3, id="down"),
        pytest.param(5, (100, 300, 500, 250, 250), (3, 4), 50, 2, id="down without unready ones"),
        pytest.param(3, (1010, 1030, 1020), (), 100, 3, id="tolerance"),
        pytest.param(3, (500, 490, 0), (2,), 50, 3, id="tolerance with an unready one"),
        pytest.param(4, (400, 95, None, None), (), 100, 3, id="missing"),
        pytest.param(2, (1000, None), (), 100, 2, id="missing, equal"),
        pytest.param(2, (1900, None), (), 100, 2, id="missing, above"),
        pytest.param(2, (600, None), (), 100, 2, id="missing, below"),
        pytest.param(3, (100, 450, None), (0,), 50, 3, id="missing and unready"),
        pytest.param(3, (100, 2000, None), (0,), 50, 4, id="missing and unready, up"),
        pytest.param(4, (100, 100, 100, None), (0,), 50, 3, id="missing and unready, down"),
        pytest.param(4, (), (), 100, None, id="no metrics"),
    ],
)
def test_replica_calculator_by_utilization(
    replicas: int,
    levels: Sequence[float | None],
    unready: Sequence[int],
    target: float,
    wanted: int | None,
) -> None:
    found = samples(levels, unready=unready)
    assert proposal(NOW, replicas, found, target, is_cpu=True) == wanted


@pytest.mark.parametrize(
    ("replicas", "levels", "target", "wanted"),
    [
        (3, (20, 10, 30), 15, 4),
        (5, (12, 12, 12, 12, 12), 20, 3),
        (3, (20, 21, 21), 20, 3),
    ],
)
def test_replica_calculator_by_value(
    replicas: int, levels: Sequence[float], target: float, wanted: int
) -> None:
    assert proposal(NOW, replicas, samples(levels), target, is_percent=False) == wanted


@pytest.mark.parametrize(("percent", "wanted"), [(56, 9), (55, 10)])
def test_replica_calculator_at_the_tolerance(percent: int, wanted: int) -> None:
    used, requested = 150, 300
    spread = (100, -100, 10, -10, 2, -2, 1, -1, 0, 0)
    found = [ReplicaSample(used, requested + extra) for extra in spread]
    assert proposal(NOW, 10, found, percent, is_cpu=True) == wanted


def test_whole_percentages_are_compared() -> None:
    assert proposal(NOW, 10, samples((1209,) * 10), 100) == 12


def test_missing_metrics_count_as_the_target_if_it_exceeds_the_request() -> None:
    assert proposal(NOW, 4, samples((1000, 1000, 1000, None)), 200) == 3  # not 2


def test_more_samples_than_replicas_do_not_turn_the_direction() -> None:
    """Four replicas report while two are requested; with the missing one, 85 % are in use."""
    assert proposal(NOW, 2, samples((800, 800, 800, None)), 100) == 2


def test_without_requests_there_is_no_utilization() -> None:
    assert proposal(NOW, 1, samples((200,), requests=0), 100) is None


def test_idle_replicas_are_not_needed() -> None:
    idle = [ReplicaSample(0.0, count=3)]
    assert proposal(NOW, 3, idle, 1, is_percent=False) == 0
    unknown = [ReplicaSample(0.0, count=2), ReplicaSample(None)]  # as busy as the target
    assert proposal(NOW, 3, unknown, 1, is_percent=False) == 1


def test_pending_replicas_count_as_idle() -> None:
    found = [*samples((700, 700)), ReplicaSample(None, 1000, ready=False, pending=True)]
    assert proposal(NOW, 3, found, 30, is_cpu=True) == 5  # 1400 / 3000 of 30 %


@pytest.mark.parametrize(
    ("sample", "counts"),
    [
        (ReplicaSample(900, 1000, started_at=NOW - 10, ready_since=NOW - 5), True),
        (
            ReplicaSample(
                900, 1000, started_at=NOW - 10, ready_since=NOW - 5, measured_since=NOW - 8
            ),
            False,
        ),
        (ReplicaSample(900, 1000, ready=False, started_at=NOW - 10), False),
        (
            ReplicaSample(900, 1000, ready=False, started_at=NOW - 400, ready_since=NOW - 9),
            True,
        ),
        (
            ReplicaSample(900, 1000, ready=False, started_at=NOW - 400, ready_since=NOW - 399),
            False,
        ),
    ],
)
def test_cpu_of_starting_replicas_is_ignored(sample: ReplicaSample, counts: bool) -> None:
    wanted = proposal(NOW, 2, [sample, ReplicaSample(100, 1000)], 50, is_cpu=True)
    assert (wanted == 2) is counts


def rules(
    pods: int, pods_s: int, percent: int, percent_s: int, select: str = "Max"
) -> dict[str, Any]:
    limits = []
    if pods:
        limits.append({"type": "Pods", "value": pods, "periodSeconds": pods_s})
    if percent:
        limits.append({"type": "Percent", "value": percent, "periodSeconds": percent_s})
    return {"policies": limits, "selectPolicy": select}


def events(sizes: Sequence[int], period_s: int) -> HpaState:
    """Return changes that are evenly distributed over a period."""
    apart = period_s / (len(sizes) + 1)
    return HpaState(changes=tuple((NOW - apart * (i + 1), n) for i, n in enumerate(sizes)))


NONE = HpaState()


@pytest.mark.parametrize(
    ("bounds", "behavior", "state", "replicas", "wanted", "expected"),
    [
        ((1, 1000), {}, NONE, 10, 15, 15),
        ((1, 1000), {}, NONE, 10, 500, 20),
        ((1, 1000), {}, NONE, 1, 10, 5),
        ((1, 1000), {"scaleUp": rules(10000, 60, 0, 0)}, NONE, 10, 50, 50),
        ((1, 1000), {"scaleUp": rules(30, 60, 0, 0)}, NONE, 10, 50, 40),
        ((1, 1000), {"scaleUp": rules(0, 0, 200, 60)}, NONE, 10, 50, 30),
        ((1, 1000), {"scaleUp": rules(0, 0, 50, 60)}, NONE, 3, 50, 5),  # rounded up
        ((1, 1000), {"scaleUp": rules(5, 60, 200, 60, "Min")}, NONE, 10, 50, 15),
        ((1, 1000), {"scaleUp": rules(5, 60, 0, 0, "Disabled")}, NONE, 10, 50, 10),
        ((1, 1000), {"scaleDown": rules(20, 60, 1, 60)}, NONE, 100, 2, 80),
        ((1, 1000), {"scaleDown": rules(2, 60, 1, 60)}, NONE, 100, 2, 98),
        ((1, 1000), {"scaleDown": rules(2, 60, 1, 60, "Min")}, NONE, 100, 2, 99),
        ((1, 1000), {"scaleDown": rules(2, 60, 0, 0, "Disabled")}, NONE, 100, 2, 100),
        ((1, 1000), {"scaleDown": rules(100, 60, 0, 0)}, NONE, 10, 0, 1),
        ((5, 1000), {"scaleDown": rules(0, 0, 100, 60)}, NONE, 10, 2, 5),
        ((1, 1000), {"scaleDown": rules(5, 60, 0, 0)}, NONE, 10, 2, 5),
        ((1, 1000), {"scaleDown": rules(0, 0, 50, 60)}, NONE, 10, 5, 5),
        ((1, 200), {"scaleUp": rules(300, 60, 0, 0)}, events((1, 5, 9), 120), 100, 500, 200),
        ((1, 200), {"scaleUp": rules(0, 0, 10000, 60)}, events((1, 5, 9), 120), 100, 500, 200),
        ((1, 1000), {"scaleUp": rules(5, 120, 0, 0)}, events((1, 5, 9), 120), 100, 500, 100),
        ((1, 1000), {"scaleUp": rules(150, 120, 0, 0)}, events((1, 5, 9), 120), 100, 500, 235),
        ((1, 1000), {"scaleUp": rules(0, 0, 200, 120)}, events((1, 5, 9), 120), 100, 500, 255),
        ((1, 1000), {}, events((-1, -5, -9), 120), 10, 5, 5),
        ((1, 1000), {"scaleDown": rules(115, 120, 0, 0)}, events((-1, -5, -9), 120), 100, 0, 1),
        ((5, 1000), {"scaleDown": rules(130, 120, 0, 0)}, events((-1, -5, -9), 120), 100, 0, 5),
        ((5, 1000), {"scaleDown": rules(0, 0, 100, 120)}, events((-1, -5, -9), 120), 100, 2, 5),
        ((1, 1000), {"scaleDown": rules(5, 120, 0, 0)}, events((-1, -5, -9), 120), 100, 2, 100),
        ((1, 1000), {"scaleDown": rules(0, 0, 50, 120)}, events((-2, -4, -6), 120), 100, 0, 56),
        ((1, 1000), {"scaleDown": rules(0, 0, 10, 120)}, events((-10,) * 3, 120), 100, 0, 100),
        ((1, 1000), {"scaleDown": rules(0, 0, 1000, 120)}, events((-10,) * 3, 120), 10, 5, 5),
        ((1, 1000), {"scaleUp": rules(1000, 60, 0, 0)}, events((8, 12, 9, 11), 120), 100, 200, 200),
    ],
)
def test_scaling_with_rules(
    bounds: tuple[int, int],
    behavior: dict[str, Any],
    state: HpaState,
    replicas: int,
    wanted: int,
    expected: int,
) -> None:
    policy = ScalingPolicy(
        metric="cpu", min_replicas=bounds[0], max_replicas=bounds[1],
        behavior=Behavior.model_validate(behavior),
    )  # fmt: skip
    assert limit(NOW, replicas, wanted, state, policy) == expected


@pytest.mark.parametrize(
    ("earlier", "replicas", "wanted", "up_s", "down_s", "expected"),
    [
        ((), 100, 5, 0, 0, 5),
        (((120, 4), (60, 5)), 100, 3, 0, 180, 5),
        (((120, 4), (60, 5)), 1, 7, 300, 0, 4),
        (((120, 1), (60, 2)), 100, 3, 300, 0, 3),
        (((120, 4), (60, 5)), 1, 3, 0, 300, 3),
        (((600, 10), (540, 9)), 100, 3, 0, 0, 3),
        (((600, 10), (540, 9)), 1, 100, 0, 0, 100),
        (((600, 10), (120, 5), (60, 4), (540, 9)), 100, 3, 0, 180, 5),
        (((6000, 10), (180, 9), (120, 5), (60, 6)), 1, 100, 300, 0, 5),
    ],
)
def test_stabilization(
    earlier: Sequence[tuple[int, int]],
    replicas: int,
    wanted: int,
    up_s: int,
    down_s: int,
    expected: int,
) -> None:
    fast = [{"type": "Percent", "value": 100, "periodSeconds": 15}]
    policy = ScalingPolicy(
        metric="cpu",
        behavior=Behavior.model_validate(
            {
                "scaleUp": {"stabilizationWindowSeconds": up_s, "policies": fast},
                "scaleDown": {"stabilizationWindowSeconds": down_s, "policies": fast},
            }
        ),
    )
    before = HpaState(proposals=tuple((NOW - ago, n) for ago, n in earlier))
    stable, after = stabilize(NOW, replicas, wanted, before, policy)
    assert stable == expected
    assert after.proposals[-1] == (NOW, wanted)
    assert all(at > NOW - max(up_s, down_s) or at == NOW for at, _ in after.proposals)


CPU = ScalingPolicy(metric="cpu", target=30, min_replicas=2, max_replicas=6)


def test_one_empty_metric_does_not_stop_scaling_up() -> None:
    policy = ScalingPolicy(
        metric="cpu", target=30, max_replicas=6,
        further_metrics=[{"metric": "memory", "target": 10}],
    )  # fmt: skip
    decision, _ = step(NOW, 3, {"cpu": samples((300, 400, 500))}, NONE, policy)
    assert decision.replicas == 4
    assert decision.reason == "cpu needs 4"


def test_one_failed_metric_stops_scaling_down() -> None:
    policy = ScalingPolicy(
        metric="cpu", target=50, further_metrics=[{"metric": "memory", "target": 10}]
    )
    levels = (100, 300, 500, 250, 250)
    decision, _ = step(NOW, 5, {"cpu": samples(levels)}, NONE, policy)
    assert decision.replicas == 5
    assert decision.reason == "no measurements of memory, so no replica is removed"
    both = {"cpu": samples(levels), "memory": samples((10,) * 5)}
    assert step(NOW, 5, both, NONE, policy)[0].replicas == 3


def test_the_largest_metric_counts() -> None:
    policy = ScalingPolicy(
        metric="cpu", target=50, further_metrics=[{"metric": "memory", "target": 10}]
    )
    both = {"cpu": samples((900,) * 3), "memory": samples((900,) * 3)}
    decision, _ = step(NOW, 3, both, NONE, policy)
    assert decision.replicas == 7  # 27, but at most four more, or twice as many
    assert decision.reason == "memory needs 27; limited to 7"


def test_an_endpoint_without_replicas_starts() -> None:
    assert step(NOW, 0, {}, NONE, CPU)[0].replicas == 2


def test_new_bounds_count_at_once() -> None:
    assert step(NOW, 9, {}, NONE, CPU)[0].replicas == 6
    assert step(NOW, 1, {}, NONE, CPU)[0].replicas == 2


def test_scaling_down_waits_for_the_window() -> None:
    state, replicas, seen = NONE, 4, []
    for tick in range(25):
        level = 300 if tick == 0 else 75
        decision, state = step(
            NOW + 15 * tick, replicas, {"cpu": samples((level,) * replicas)}, state, CPU
        )
        replicas = decision.replicas
        seen.append(replicas)
    assert seen[:20] == [4] * 20
    assert seen[20:] == [2] * 5  # 300 seconds after the last higher proposal


def test_memory_in_mib() -> None:
    policy = ScalingPolicy(metric="memory", target=100, target_unit="MiB")
    decision, _ = step(NOW, 2, {"memory": samples((200, 200), requests=0)}, NONE, policy)
    assert decision.replicas == 4


def test_equal_samples_may_be_counted_together() -> None:
    single = samples((300, 500, 500, 700))
    grouped = [ReplicaSample(300, 1000), ReplicaSample(500, 1000, count=2), single[3]]
    assert proposal(NOW, 4, grouped, 30) == proposal(NOW, 4, single, 30)


levels = st.lists(st.one_of(st.none(), st.floats(0, 5000)), min_size=1, max_size=20)


@given(
    levels, st.integers(0, 5), st.integers(5, 30), st.integers(0, 40),
    st.lists(st.tuples(st.floats(0, 400), st.integers(1, 40)), max_size=5),
    st.lists(st.tuples(st.floats(0, 400), st.integers(-9, 9)), max_size=5),
)  # fmt: skip
def test_the_bounds_hold(
    found: list[float | None], least: int, most: int, replicas: int, proposals: list, changes: list
) -> None:
    policy = ScalingPolicy(metric="cpu", min_replicas=least, max_replicas=most)
    state = HpaState(
        tuple((NOW - ago, n) for ago, n in proposals), tuple((NOW - ago, n) for ago, n in changes)
    )
    decision, after = step(NOW, replicas, {"cpu": samples(found)}, state, policy)
    assert max(1, least) <= decision.replicas <= most
    assert decision.reason
    if decision.replicas != replicas:
        assert after.changes[-1] == (NOW, decision.replicas - replicas)


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=20), st.floats(1, 10))
def test_more_load_never_means_fewer_replicas(found: list[float], factor: float) -> None:
    less = proposal(NOW, len(found), samples(found), 50)
    more = proposal(NOW, len(found), samples([level * factor for level in found]), 50)
    assert less is not None
    assert more is not None
    assert more >= less

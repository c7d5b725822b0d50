"""Scaling policies: defaults, derived values, refused combinations."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from timonel.endpoints.autoscaling.policy import ScalingPolicy


@pytest.mark.parametrize(
    ("fields", "capacity", "load"),
    [
        ({}, 100, 70),
        ({"metric": "rps"}, 200, 140),
        ({"target": 10}, 10, 7),
        ({"container_concurrency": 4}, 4, 2.8),
        ({"container_concurrency": 4, "target": 2}, 2, 1.4),
        ({"container_concurrency": 4, "target": 200}, 4, 2.8),
        ({"container_concurrency": 4, "metric": "rps"}, 200, 140),
        ({"target": 0.01}, 0.01, 0.01),  # the smallest target
    ],
)
def test_targets_of_kpa(fields: dict[str, Any], capacity: float, load: float) -> None:
    policy = ScalingPolicy(**fields)
    assert policy.capacity == capacity
    assert policy.load_per_replica == pytest.approx(load)


def test_defaults_are_those_of_knative() -> None:
    policy = ScalingPolicy()
    assert (policy.target, policy.utilization_percent) == (100, 70)
    assert (policy.window_s, policy.panic_window_s, policy.panic_threshold_percent) == (60, 6, 200)
    assert (policy.max_scale_up_rate, policy.max_scale_down_rate) == (1000, 2)
    assert (policy.scale_to_zero_grace_s, policy.retention_s, policy.scale_down_delay_s) == (
        *(30, 0),
        0,
    )
    assert (policy.initial_replicas, policy.activation_replicas, policy.min_replicas) == (1, 1, 0)
    assert (policy.target_burst_capacity, policy.progress_deadline_s) == (211, 600)
    assert (policy.max_replicas, policy.container_concurrency) == (0, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"utilization_percent": 1},
        {"utilization_percent": 100},
        {"window_s": 6},
        {"window_s": "1h"},
        {"panic_window_percent": 1},
        {"panic_window_percent": 100},
        {"panic_threshold_percent": 110},
        {"panic_threshold_percent": 1000},
        {"max_scale_up_rate": 1.001},
        {"max_scale_down_rate": 1.001},
        {"scale_down_delay_s": "1h"},
        {"target_burst_capacity": -1},
        {"progress_deadline_s": 0.1},
        {"tolerance": 0},
        {"min_replicas": 2, "max_replicas": 2},
        {"initial_replicas": 2, "max_replicas": 2},
        {"max_replicas": 1},
        {"forecast": {"period_s": 3600, "lead_s": 0}},
        {"forecast": {"lead_s": 3600}},
    ],
)
def test_limits_are_inclusive(fields: dict[str, Any]) -> None:
    ScalingPolicy(**fields)


CLUSTER = {
    "algorithm": "cluster",
    "cluster_metrics": [{"type": "External"}],
    "min_replicas": 1,
    "max_replicas": 3,
}


def test_the_cluster_scales_by_its_own_metrics() -> None:
    policy = ScalingPolicy(**CLUSTER)
    assert (policy.tick_s, policy.goal) == (0, "by metrics of the cluster")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cluster_metrics": []}, "go together"),
        ({"algorithm": "hpa"}, "go together"),
        ({"metric": "cpu"}, "remove metric and further_metrics"),
        ({"further_metrics": [{"metric": "cpu", "target": 5}]}, "remove metric and"),
        ({"min_replicas": 0}, "at least one replica and a largest number"),
        ({"max_replicas": 0}, "at least one replica and a largest number"),
    ],
)
def test_what_the_cluster_cannot_scale_by_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ScalingPolicy(**{**CLUSTER, **fields})


def test_the_metric_chooses_the_algorithm() -> None:
    assert ScalingPolicy().algorithm == "kpa"
    assert ScalingPolicy(metric="rps").tick_s == 2
    cpu = ScalingPolicy(metric="cpu")
    assert (cpu.algorithm, cpu.target, cpu.tick_s) == ("hpa", 80, 15)
    assert ScalingPolicy(metric="rps", algorithm="hpa").algorithm == "hpa"


def test_durations_have_units() -> None:
    policy = ScalingPolicy(window_s="2m", panic_window_percent=25)
    assert (policy.window_s, policy.panic_window_s) == (120, 30)


def test_rules_that_a_behavior_leaves_out_are_kubernetes_defaults() -> None:
    """As GenerateHPAScaleUpRules and GenerateHPAScaleDownRules."""
    one = [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    found = ScalingPolicy(
        metric="cpu",
        behavior={"scaleDown": {"policies": one}, "scaleUp": {"stabilizationWindowSeconds": 30}},
    ).behavior
    assert found.scale_down.stabilization_window_seconds == 300
    assert [rule.value for rule in found.scale_down.policies] == [1]
    assert found.scale_up.stabilization_window_seconds == 30
    assert [(rule.type, rule.value) for rule in found.scale_up.policies] == [
        ("Pods", 4),
        ("Percent", 100),
    ]
    snake = ScalingPolicy(metric="cpu", behavior={"scale_down": {"select_policy": "Disabled"}})
    assert snake.behavior.scale_down.select_policy == "Disabled"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"metric": "cpu", "algorithm": "kpa"}, "kpa cannot scale by cpu"),
        ({"further_metrics": [{"metric": "cpu", "target": 5}]}, "kpa has one metric"),
        ({"metric": "cpu", "forecast": {}}, "a forecast needs"),
        ({"metric": "cpu", "target_unit": "MiB", "target": 5}, "only a memory target"),
        ({"metric": "memory", "target_unit": "MiB"}, "has no default"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas 3 is above max_replicas 2"),
        ({"initial_replicas": 3, "max_replicas": 2}, "initial_replicas 3 is above"),
        ({"window_s": 5}, "greater than or equal to 6"),
        ({"window_s": "2h"}, "less than or equal to 3600"),
        ({"target": 0}, "greater than or equal to 0.01"),
        ({"target": float("nan")}, "finite"),
        ({"panic_threshold_percent": 100}, "greater than or equal to 110"),
        ({"scale_down_delay_s": "61m"}, "less than or equal to 3600"),
        ({"max_scale": 3}, "Extra inputs"),
        ({"behavior": {"scaleUp": {"policies": []}}}, "at least 1 item"),
    ],
)
def test_wrong_policies_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ScalingPolicy(**fields)

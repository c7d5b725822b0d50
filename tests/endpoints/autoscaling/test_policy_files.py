"""Policies from YAML files and manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from timonel.endpoints.autoscaling.policy_files import (
    from_annotations,
    parse_policy,
    read_policy,
)
from timonel.errors import SpecError

P = "autoscaling.knative.dev/"


def test_own_fields() -> None:
    policy = parse_policy("target: 5\nwindow_s: 2m\nforecast: {lead_s: 90s}\n")
    assert (policy.target, policy.window_s) == (5, 120)
    assert policy.forecast is not None
    assert policy.forecast.lead_s == 90


def test_an_empty_file_is_the_default_policy() -> None:
    assert parse_policy("# nothing\n").load_per_replica == pytest.approx(70)


def test_annotations() -> None:
    policy = from_annotations(
        {
            f"{P}class": "kpa.autoscaling.knative.dev",
            f"{P}metric": "rps",
            f"{P}target": "150",
            f"{P}target-utilization-percentage": "80",
            f"{P}minScale": "2",
            f"{P}max-scale": "9",
            f"{P}initial-scale": "3",
            f"{P}scale-down-delay": "15m",
            f"{P}window": "1m30s",
            f"{P}panicWindowPercentage": "20.0",
            f"{P}panic-threshold-percentage": "150.0",
            f"{P}scale-to-zero-pod-retention-period": "1m5s",
            f"{P}target-burst-capacity": "-1",
            "networking.knative.dev/x": "y",
        }
    )
    assert policy.load_per_replica == pytest.approx(120)
    assert (policy.min_replicas, policy.max_replicas, policy.initial_replicas) == (2, 9, 3)
    assert (policy.scale_down_delay_s, policy.window_s, policy.retention_s) == (900, 90, 65)
    assert policy.panic_window_s == 18
    assert policy.target_burst_capacity == -1


def test_hpa_annotations() -> None:
    hpa = {f"{P}class": "hpa.autoscaling.knative.dev"}
    cpu = from_annotations({**hpa, f"{P}metric": "cpu", f"{P}target": "70"})
    assert (cpu.algorithm, cpu.target, cpu.target_unit) == ("hpa", 70, "percent")
    memory = from_annotations({**hpa, f"{P}metric": "memory", f"{P}target": "75"})
    assert (memory.target, memory.target_unit) == (75, "MiB")


KNATIVE = """
apiVersion: serving.knative.dev/v1
kind: Service
spec:
  template:
    metadata:
      annotations: {autoscaling.knative.dev/min-scale: "1"}
    spec: {containerConcurrency: 4}
"""
KSERVE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  annotations: %s
spec:
  predictor: %s
"""
HPA = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
spec:
  minReplicas: 2
  maxReplicas: 8
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}
  - {type: Resource, resource: {name: memory, target: {averageUtilization: 70}}}
  behavior:
    scaleDown:
      stabilizationWindowSeconds: 60
      selectPolicy: Min
      policies: [{type: Pods, value: 1, periodSeconds: 30}]
"""


def test_metrics_that_only_a_cluster_knows_are_left_to_it() -> None:
    pods = {"type": "Pods", "pods": {"metric": {"name": "queued"}, "target": {"averageValue": "5"}}}
    spec = {"minReplicas": 2, "maxReplicas": 8, "metrics": [pods]}
    manifest = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": spec}
    policy = parse_policy(json.dumps(manifest))
    assert (policy.algorithm, policy.min_replicas, policy.max_replicas) == ("cluster", 2, 8)
    assert policy.cluster_metrics == (pods,)
    assert policy.goal == "by metrics of the cluster"
    spec["targetCPUUtilizationPercentage"] = 50
    with pytest.raises(SpecError, match="has no targetCPUUtilizationPercentage"):
        parse_policy(json.dumps(manifest))
    del spec["targetCPUUtilizationPercentage"], spec["maxReplicas"]
    with pytest.raises(SpecError, match="needs at least one replica and a largest number"):
        parse_policy(json.dumps(manifest))


def test_a_knative_service() -> None:
    policy = parse_policy(KNATIVE)
    assert policy.min_replicas == 1
    assert policy.load_per_replica == pytest.approx(2.8)


@pytest.mark.parametrize(
    ("annotations", "predictor", "expected"),
    [
        ("{}", "{}", {"metric": "concurrency", "min_replicas": 1, "target": 100}),
        (
            "{}",
            "{minReplicas: 0, maxReplicas: 5, scaleTarget: 20, scaleMetric: rps, timeout: 9}",
            {"metric": "rps", "min_replicas": 0, "max_replicas": 5, "target": 20},
        ),
        ("{}", "{containerConcurrency: 2}", {"target": 2, "container_concurrency": 2}),
        (
            "{autoscaling.knative.dev/target: '7'}",
            "{minReplicas: 3}",
            {"target": 7, "min_replicas": 3},
        ),
        (
            "{serving.kserve.io/deploymentMode: Standard}",
            "{maxReplicas: 3}",
            {"metric": "cpu", "algorithm": "hpa", "target": 80, "min_replicas": 1},
        ),
        (
            "{serving.kserve.io/deploymentMode: RawDeployment}",
            "{scaleMetric: memory, scaleTarget: 60}",
            {"metric": "memory", "target": 60, "target_unit": "percent"},
        ),
    ],
)
def test_kserve(annotations: str, predictor: str, expected: dict[str, Any]) -> None:
    policy = parse_policy(KSERVE % (annotations, predictor))
    assert {name: getattr(policy, name) for name in expected} == expected


def test_keys_that_are_no_texts_do_not_matter() -> None:
    assert parse_policy(KSERVE % ("{1: 2}", "{3: 4}")).min_replicas == 1


def test_a_horizontal_pod_autoscaler() -> None:
    policy = parse_policy(HPA)
    assert (policy.metric, policy.target, policy.min_replicas, policy.max_replicas) == (
        "cpu", 60, 2, 8,
    )  # fmt: skip
    assert policy.further_metrics[0].metric == "memory"
    assert policy.behavior.scale_down.policies[0].value == 1
    assert policy.behavior.scale_up.stabilization_window_seconds == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "a: 1\nb: [",
            "not valid YAML (line 2, column 5): expected the node content",
        ),
        ("- 1", "the policy has no keys: write lines such as 'target: 10'"),
        ("targett: 1", "the policy has the unknown key 'targett': did you mean 'target'?"),
        ("target: x", "the policy is wrong: 'target': Input should be a valid number"),
        ("window_s: 5 parsecs", "'window_s': expected a duration"),
        ("metric: cpu\nalgorithm: kpa", "kpa cannot scale by cpu: use the algorithm hpa"),
        ("metric: [1]", "'metric'"),
        ("apiVersion: v1\nkind: Pod", "a manifest of kind 'Pod' has no scaling policy"),
        (KSERVE % (f"{{{P}targett: '1'}}", "{}"), "unknown annotation"),
        (KSERVE % (f"{{{P}target: few}}", "{}"), "has the wrong value 'few'"),
        (KSERVE % (f"{{{P}window: 1 day}}", "{}"), "has the wrong value '1 day'"),
        (KSERVE % (f"{{{P}class: keda}}", "{}"), "has the wrong value 'keda'"),
        (KSERVE % (f"{{{P}minScale: '1', {P}min-scale: '2'}}", "{}"), "is repeated"),
        (KSERVE % ("{}", "[1]"), "'predictor' must have keys"),
        (HPA.replace("averageUtilization", "averageValue"), "cannot scale by the metric"),
        (HPA.partition("  metrics")[0] + "  metrics: [3]", "'metrics' must be a list"),
        (HPA.partition("  metrics")[0] + "  metrics: 3", "'metrics' must be a list"),
        (HPA.partition("spec:")[0] + "spec: 3", "'spec' must have keys, got 3"),
        ("container_concurrency: x", "'container_concurrency': Input should be a valid integer"),
        ("1: 2", "the policy is wrong: '1': Keys should be strings"),
    ],
)
def test_wrong_files_are_refused(text: str, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_policy(text)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read the policy"):
        read_policy(tmp_path / "none.yaml")

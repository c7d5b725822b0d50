"""Parse scaling policies in YAML, and manifests of Knative, KServe and Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from pydantic import ValidationError

from timonel.endpoints.autoscaling.policy import ScalingPolicy
from timonel.errors import SpecError, did_you_mean
from timonel.storage.yaml_text import PlainLoader, yaml_problem
from timonel.units import parse_quantity

PREFIX = "autoscaling.knative.dev/"
_KSERVE = "serving.kserve.io/"
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MIB = 1024 * 1024


def read_policy(path: Path) -> ScalingPolicy:
    """Read a policy file; see `parse_policy`."""
    try:
        return parse_policy(path.read_text())
    except OSError as error:
        raise SpecError(f"cannot read the policy {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"the policy {path} is no text", hint="write it as YAML") from error


def parse_policy(text: str) -> ScalingPolicy:
    """Parse the fields of `ScalingPolicy`, or a manifest with ``apiVersion`` and ``kind``.

    Manifests may be a Knative Service, a KServe InferenceService or a HorizontalPodAutoscaler.
    """
    try:
        document = yaml.load(text, Loader=PlainLoader)  # noqa: S506 - as safe_load
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"the policy is not valid YAML{yaml_problem(error)}") from error
    document = {} if document is None else document
    if not isinstance(document, Mapping):
        raise SpecError("the policy has no keys", hint="write lines such as 'target: 10'")
    if "apiVersion" not in document:
        return _policy(document)
    kind = str(document.get("kind"))
    if kind not in _MANIFESTS:
        raise SpecError(
            f"a manifest of kind {kind!r} has no scaling policy",
            hint=f"use {', '.join(_MANIFESTS)}, or the policy's own fields",
        )
    return _MANIFESTS[kind](document)


def from_annotations(
    annotations: Mapping[str, object], container_concurrency: int = 0
) -> ScalingPolicy:
    """Return the policy in the annotations ``autoscaling.knative.dev/...``; ignore others."""
    return _policy({**_annotated(annotations), "container_concurrency": container_concurrency})


def _annotated(annotations: Mapping[str, object]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in annotations.items():
        if not key.startswith(PREFIX):
            continue
        # Older releases wrote minScale for min-scale.
        name = re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", key.removeprefix(PREFIX))
        if name not in _ANNOTATIONS:
            raise SpecError(f"unknown annotation '{key}'", hint=did_you_mean(name, _ANNOTATIONS))
        field, convert = _ANNOTATIONS[name]
        if field in fields:
            raise SpecError(f"the annotation '{key}' is repeated", hint="remove one spelling")
        try:
            fields[field] = convert(str(value))
        except (ValueError, KeyError):
            raise SpecError(f"the annotation '{key}' has the wrong value {value!r}") from None
    if fields.get("metric") == "memory":
        fields["target_unit"] = "MiB"
    return fields


def _duration(text: str) -> float:
    if text == "0":
        return 0.0
    if not re.fullmatch(f"(?:{_DURATION.pattern})+", text):
        raise ValueError(text)
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


_CLASSES = {f"{name}.{PREFIX.rstrip('/')}": name for name in ("kpa", "hpa")}
_ANNOTATIONS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "class": ("algorithm", _CLASSES.__getitem__),
    "metric": ("metric", str),
    "target": ("target", float),
    "target-utilization-percentage": ("utilization_percent", float),
    "min-scale": ("min_replicas", int),
    "max-scale": ("max_replicas", int),
    "initial-scale": ("initial_replicas", int),
    "activation-scale": ("activation_replicas", int),
    "scale-down-delay": ("scale_down_delay_s", _duration),
    "scale-to-zero-pod-retention-period": ("retention_s", _duration),
    "window": ("window_s", _duration),
    "panic-window-percentage": ("panic_window_percent", float),
    "panic-threshold-percentage": ("panic_threshold_percent", float),
    "target-burst-capacity": ("target_burst_capacity", float),
    "metric-aggregation-algorithm": ("aggregation", str),
}


def _from_knative(document: Mapping[str, Any]) -> ScalingPolicy:
    template = _part(document, "spec", "template")
    concurrency = _part(template, "spec").get("containerConcurrency", 0)
    return from_annotations(_part(template, "metadata", "annotations"), concurrency)


def _from_kserve(document: Mapping[str, Any]) -> ScalingPolicy:
    predictor = _part(document, "spec", "predictor")
    annotations = _part(document, "metadata", "annotations")
    fields: dict[str, Any] = {"min_replicas": predictor.get("minReplicas", 1)}
    for key, field in (
        ("maxReplicas", "max_replicas"),
        ("scaleTarget", "target"),
        ("scaleMetric", "metric"),
        ("containerConcurrency", "container_concurrency"),
    ):
        if predictor.get(key) is not None:
            fields[field] = predictor[key]
    # Without Knative, KServe scales by an HPA.
    if annotations.get(f"{_KSERVE}deploymentMode") in {"RawDeployment", "Standard"}:
        fields = {"metric": "cpu", "algorithm": "hpa", **fields}
        percent = annotations.get(f"{_KSERVE}targetUtilizationPercentage")
        if percent is not None and "target" not in fields:
            fields["target"] = percent
    annotated = _annotated(annotations)
    if fields.get("metric") == "memory":
        annotated.pop("target_unit", None)
    return _policy({**fields, **annotated})


def _from_hpa(document: Mapping[str, Any]) -> ScalingPolicy:
    spec = _part(document, "spec")
    fields: dict[str, Any] = {"metric": "cpu", "algorithm": "hpa"}
    fields["min_replicas"] = spec.get("minReplicas", 1)
    fields["max_replicas"] = spec.get("maxReplicas", 0)
    if spec.get("behavior"):
        fields["behavior"] = spec["behavior"]
    if "targetCPUUtilizationPercentage" in spec:
        fields["target"] = spec["targetCPUUtilizationPercentage"]
    metrics = spec.get("metrics") or [{}]
    if not isinstance(metrics, list) or not all(isinstance(each, Mapping) for each in metrics):
        raise SpecError(f"'metrics' must be a list of metrics, got {metrics!r}")
    if any(each.get("type", "Resource") != "Resource" for each in metrics):
        # Only the cluster knows their values.
        if "targetCPUUtilizationPercentage" in spec:
            raise SpecError(
                "a HorizontalPodAutoscaler with metrics has no targetCPUUtilizationPercentage",
                hint="state it as a Resource metric",
            )
        fields |= {"algorithm": "cluster", "metric": "concurrency", "cluster_metrics": metrics}
        return _policy(fields)
    first, *further = map(_resource, metrics)
    return _policy({**fields, **first, **({"further_metrics": further} if further else {})})


def _resource(metric: Mapping[str, Any]) -> dict[str, Any]:
    """Return metric and target of an entry of ``metrics``."""
    if not metric:
        return {}
    resource = _part(metric, "resource")
    name, target = resource.get("name"), _part(resource, "target")
    if name in {"cpu", "memory"} and "averageUtilization" in target:
        return {"metric": name, "target": target["averageUtilization"]}
    if name == "memory" and "averageValue" in target:
        size = float(parse_quantity(str(target["averageValue"]))) / _MIB
        return {"metric": name, "target": size, "target_unit": "MiB"}
    raise SpecError(
        f"cannot scale by the metric {metric}",
        hint="use an averageUtilization of cpu or memory, or an averageValue of memory",
    )


_MANIFESTS: Mapping[str, Callable[[Mapping[str, Any]], ScalingPolicy]] = {
    "Service": _from_knative,
    "InferenceService": _from_kserve,
    "HorizontalPodAutoscaler": _from_hpa,
}


def _part(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return a nested mapping, empty if it is missing."""
    found: Any = document
    for key in keys:
        found = found.get(key) or {}
        if not isinstance(found, Mapping):
            raise SpecError(f"'{key}' must have keys, got {found!r}")
    return {str(key): value for key, value in found.items()}


def _policy(fields: Mapping[str, Any]) -> ScalingPolicy:
    try:
        return ScalingPolicy.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            near = did_you_mean(place, ScalingPolicy.model_fields)
            raise SpecError(f"the policy has the unknown key '{place}'", hint=near) from None
        message = first["msg"].removeprefix("Value error, ")
        problem, _, cure = message.partition("; ")
        where = f"'{place}': " if place else ""
        raise SpecError(f"the policy is wrong: {where}{problem}", hint=cure or None) from None

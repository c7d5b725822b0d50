"""HorizontalPodAutoscalers, by which the cluster itself scales a service. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timonel.engines.kubernetes.manifests import Manifest
from timonel.engines.kubernetes.names import service_labels
from timonel.engines.service_spec import AutoscalerSpec

KIND = "HorizontalPodAutoscaler"
_WORKING = frozenset({"AbleToScale", "ScalingActive"})


def autoscaler(name: str, spec: AutoscalerSpec) -> Manifest:
    """Return the HorizontalPodAutoscaler of a service."""
    body: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": spec.least,
        "maxReplicas": spec.most,
        "metrics": [dict(each) for each in spec.metrics],
        "behavior": dict(spec.behavior),
    }
    metadata = {"name": name, "labels": service_labels(name)}
    return {"apiVersion": "autoscaling/v2", "kind": KIND, "metadata": metadata, "spec": body}


def failure_of(found: Mapping[str, Any]) -> str | None:
    """Return why a HorizontalPodAutoscaler does not scale; None if it does, or is new."""
    for each in (found.get("status") or {}).get("conditions") or ():
        if each["type"] in _WORKING and each["status"] == "False":
            return str(each.get("message") or each["reason"])
    return None


def is_owned(found: Mapping[str, Any], uid: str) -> bool:
    """Return whether an object belongs to the Deployment with a UID."""
    return any(each["uid"] == uid for each in found["metadata"].get("ownerReferences") or ())

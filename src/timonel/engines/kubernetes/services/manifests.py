"""Objects of a service in the cluster, as manifests. Pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from timonel.engines.kubernetes import names
from timonel.engines.kubernetes.manifests import Manifest
from timonel.engines.kubernetes.rights import GROUP, service_rules
from timonel.engines.kubernetes.services.template import replica_template
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.service_spec import ServiceSpec
from timonel.errors import SpecError

_KEPT_REVISIONS = 100
_KEPT_REPLICA_SETS = 10
# Images may take long to pull.
_EXTRA_PROGRESS_S = 600


def service_manifests(spec: ServiceSpec, settings: ClusterSettings) -> list[Manifest]:
    """Return the manifests of a new service, in the order of their creation.

    The first one is the paused Deployment, which owns all others, see `manifests.owned`.

    Args:
        settings: Settings of the cluster, with the namespace of the service.
    """
    return [_deployment(spec, settings), _disruption_budget(spec), *_rights(spec, settings)]


def applied(deployment: Mapping[str, Any], first: Manifest, spec: ServiceSpec) -> Manifest | None:
    """Return a Deployment after a specification was applied; None: nothing changes.

    Args:
        first: The first manifest of the specification.
    """
    revisions = _revisions(deployment)
    if revisions.get(str(spec.revision), spec.digest) != spec.digest:
        raise SpecError(
            f"revision {spec.revision} of {spec.name} was applied with other contents",
            hint="apply the change as another revision",
        )
    before = deployment["spec"]
    replicas = before["replicas"] if spec.replicas is None else spec.replicas
    metadata = deployment["metadata"]
    is_same = metadata["labels"].get(names.REVISION_LABEL) == str(spec.revision)
    if is_same and replicas == before["replicas"] and not before.get("paused"):
        return None
    replacement = first["spec"]
    if is_same:
        # Settings of the cluster, such as its image, take effect with the next revision.
        replacement = {**before, "paused": False}
    others = [(key, value) for key, value in revisions.items() if key != str(spec.revision)]
    history = dict([*others[1 - _KEPT_REVISIONS :], (str(spec.revision), spec.digest)])
    annotations = {
        **(metadata.get("annotations") or {}),
        names.DIGEST_ANNOTATION: spec.digest,
        names.REVISIONS_ANNOTATION: json.dumps(history),
    }
    labels = {**metadata["labels"], **first["metadata"]["labels"]}
    return {
        "apiVersion": first["apiVersion"],
        "kind": first["kind"],
        "metadata": {**metadata, "labels": labels, "annotations": annotations},
        "spec": {**replacement, "replicas": replicas, "paused": False},
    }


def _revisions(deployment: Mapping[str, Any]) -> dict[str, str]:
    annotations = deployment["metadata"].get("annotations") or {}
    found: dict[str, str] = json.loads(annotations.get(names.REVISIONS_ANNOTATION, "{}"))
    return found


def _object(service: ServiceSpec, version: str, kind: str, **body: Any) -> Manifest:
    metadata = {"name": service.name, "labels": names.service_labels(service.name)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}


def _deployment(spec: ServiceSpec, settings: ClusterSettings) -> Manifest:
    body = {
        # Its pods need the other objects.
        "paused": True,
        "replicas": 1 if spec.replicas is None else spec.replicas,
        "selector": {"matchLabels": names.service_objects(spec.name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        },
        "revisionHistoryLimit": _KEPT_REPLICA_SETS,
        "progressDeadlineSeconds": math.ceil(spec.start_timeout_s) + _EXTRA_PROGRESS_S,
        "template": replica_template(spec, settings),
    }
    manifest = _object(spec, "apps/v1", "Deployment", spec=body)
    manifest["metadata"]["labels"][names.REVISION_LABEL] = str(spec.revision)
    manifest["metadata"]["annotations"] = {
        names.DIGEST_ANNOTATION: spec.digest,
        names.REVISIONS_ANNOTATION: json.dumps({str(spec.revision): spec.digest}),
    }
    return manifest


def _disruption_budget(spec: ServiceSpec) -> Manifest:
    body = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": names.service_objects(spec.name)},
        # Replicas that do not work may not keep a node from being drained.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return _object(spec, "policy/v1", "PodDisruptionBudget", spec=body)


def _rights(spec: ServiceSpec, settings: ClusterSettings) -> list[Manifest]:
    """Return the rights to manage services, and a ServiceAccount unless the user chose one."""
    if not spec.uses_engine:
        return []
    account = {
        "kind": "ServiceAccount",
        "name": settings.service_account or spec.name,
        "namespace": settings.namespace or "default",
    }
    own = [] if settings.service_account else [_object(spec, "v1", "ServiceAccount")]
    role_ref = {"apiGroup": GROUP, "kind": "Role", "name": spec.name}
    return [
        *own,
        _object(
            spec, f"{GROUP}/v1", "Role", rules=service_rules(has_routes=settings.domain is not None)
        ),
        _object(spec, f"{GROUP}/v1", "RoleBinding", roleRef=role_ref, subjects=[account]),
    ]

"""HorizontalPodAutoscalers, by which the cluster itself scales a service."""

from __future__ import annotations

import contextlib
from typing import Any

from timonel.engines.kubernetes.api import Api, Object
from timonel.engines.kubernetes.manifests import Manifest, owned
from timonel.engines.kubernetes.names import service_labels
from timonel.engines.service_spec import ScalingDelegation
from timonel.errors import AlreadyExistsError, EngineError, NotFoundError

_KIND = "HorizontalPodAutoscaler"
_WORKING = frozenset({"AbleToScale", "ScalingActive"})
_DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment"}


def delegate(api: Api, deployment: Object, rules: ScalingDelegation | None) -> None:
    """Create, change or delete the HorizontalPodAutoscaler of a service's Deployment. Idempotent.

    Args:
        api: The cluster.
        deployment: The Deployment, which owns it.
        rules: Its rules; None to delete it.

    Raises:
        EngineError: The cluster refuses it, cannot compute a number of replicas from its metrics,
            or has another one of that name.
    """
    metadata = deployment["metadata"]
    name, uid = metadata["name"], metadata["uid"]
    found = api.find(_KIND, name)
    if found is not None and not _is_owned(found, uid):
        if rules is None:
            return  # the user's own
        raise EngineError(
            f"the cluster has another {_KIND} '{name}', which the endpoint needs",
            hint=f"delete it with 'kubectl delete hpa {name}'",
        )
    if rules is None:
        if found is not None:
            with contextlib.suppress(NotFoundError):
                api.delete(_KIND, name, uid=found["metadata"]["uid"])
    elif found is None:
        owner = {**_DEPLOYMENT, "metadata": metadata}
        (manifest,) = owned([owner, autoscaler(name, rules)], uid)
        with contextlib.suppress(AlreadyExistsError):  # another control plane was faster
            api.create(manifest)
    else:
        changed = api.patch(_KIND, name, {"spec": autoscaler(name, rules)["spec"]})
        for each in (changed.get("status") or {}).get("conditions") or ():
            if each["type"] in _WORKING and each["status"] == "False":
                raise EngineError(
                    f"the cluster cannot scale {name}: {each.get('message') or each['reason']}",
                    hint=f"see 'kubectl describe hpa {name}'",
                )


def autoscaler(name: str, rules: ScalingDelegation) -> Manifest:
    """Return the HorizontalPodAutoscaler of a service."""
    spec: dict[str, Any] = {
        "scaleTargetRef": {**_DEPLOYMENT, "name": name},
        "minReplicas": rules.least,
        "maxReplicas": rules.most,
        "metrics": [dict(each) for each in rules.metrics],
        "behavior": dict(rules.behavior),
    }
    metadata = {"name": name, "labels": service_labels(name)}
    return {"apiVersion": "autoscaling/v2", "kind": _KIND, "metadata": metadata, "spec": spec}


def _is_owned(found: Object, uid: str) -> bool:
    return any(each["uid"] == uid for each in found["metadata"].get("ownerReferences") or ())

"""Rights of users, coordinators and services in a namespace, as rules of Roles. Pure functions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.errors import SpecError

GROUP = "rbac.authorization.k8s.io"
_NAME = "timonel-user"
_SLUG_LENGTH = 36
_DIGEST_LENGTH = 8
_LABELS = {"app.kubernetes.io/name": "timonel"}

Rule = dict[str, Any]

_USER_RULES = (
    ("", ("configmaps",), ("create", "get", "list")),
    ("", ("pods",), ("list",)),
    ("", ("secrets",), ("create", "delete", "list")),
    ("", ("serviceaccounts", "services"), ("create",)),
    ("batch", ("jobs",), ("create", "delete", "get", "list", "patch")),
    # Some clusters, such as OpenShift, ask for it from those who create what a Job owns.
    ("batch", ("jobs/finalizers",), ("update",)),
    ("coordination.k8s.io", ("leases",), ("create",)),
    (GROUP, ("rolebindings", "roles"), ("create", "get", "patch")),
    # For 'kubectl port-forward', which connects with GET (WebSocket) or POST (SPDY).
    ("", ("pods/portforward",), ("create", "get")),
    ("", ("serviceaccounts",), ("get",)),
)
"""Rights of users, but for those that they give to coordinators and services."""

_SERVICE_RULES = (
    ("", ("configmaps",), ("create", "delete", "get", "list", "patch", "watch")),
    ("", ("events",), ("list", "watch")),
    ("", ("pods",), ("delete", "get", "list", "watch")),
    ("", ("pods/log",), ("get",)),
    ("", ("secrets",), ("get",)),
    ("", ("services",), ("create", "delete", "get", "patch")),
    ("apps", ("deployments",), ("create", "delete", "get", "list", "update", "watch")),
    ("apps", ("deployments/finalizers",), ("update",)),  # as for jobs/finalizers
    ("apps", ("deployments/scale",), ("patch",)),
    ("autoscaling", ("horizontalpodautoscalers",), ("create", "delete", "get", "patch")),
    ("coordination.k8s.io", ("leases",), ("create", "get", "patch")),
    ("policy", ("poddisruptionbudgets",), ("create", "get", "patch")),
)
"""Rights that managing services takes."""

_ROUTE_VERBS = ("create", "delete", "get", "patch")
_ROUTE_RULES = (
    ("gateway.networking.k8s.io", ("httproutes",), _ROUTE_VERBS),
    ("networking.k8s.io", ("ingresses",), _ROUTE_VERBS),
)
"""Rights that routes to endpoints from outside the cluster take."""


@dataclass(frozen=True, order=True)
class ClusterRight:
    """A right in a namespace.

    Attributes:
        group: API group; empty for the core group.
        resource: Resource, as in roles: ``jobs``, ``pods/status``.
        verb: Verb, as in roles.
    """

    group: str
    resource: str
    verb: str


def coordinator_rules(job_id: str, jobs: Sequence[str]) -> list[Rule]:
    """Return the rules of the Role of a job's coordinator."""
    return [
        _rule("", ["configmaps"], ["get", "patch"], [job_id]),
        _rule("batch", ["jobs"], ["get", "patch"], jobs),
        _rule("coordination.k8s.io", ["leases"], ["get", "patch"], [job_id]),
        _rule("", ["pods"], ["get", "list", "delete"]),
        _rule("", ["pods/status"], ["patch"]),
    ]


def service_rules(*, has_routes: bool = False) -> list[Rule]:
    """Return the rules of the Role of a service whose replicas manage services.

    Args:
        has_routes: Whether they create Ingresses or HTTPRoutes.
    """
    return [_rule(*rule) for rule in (*_SERVICE_RULES, *(_ROUTE_RULES if has_routes else ()))]


def user_rights(*, has_routes: bool = False) -> list[ClusterRight]:
    """Return the rights that running jobs and services takes, sorted.

    They include all rights of coordinators and services: the cluster lets users give only rights
    that they have.

    Args:
        has_routes: Whether endpoints have Ingresses or HTTPRoutes.
    """
    rules = [_rule(*rule) for rule in _USER_RULES]
    return sorted(
        {
            ClusterRight(rule["apiGroups"][0], resource, verb)
            for rule in [*rules, *service_rules(has_routes=has_routes), *coordinator_rules("", ())]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
    )


def subject(kind: str, name: str, namespace: str) -> dict[str, str]:
    """Return the subject of a RoleBinding.

    Args:
        kind: ``User``, ``Group`` or ``ServiceAccount``.
        name: Its name; a ServiceAccount of another namespace as ``NAMESPACE:NAME``.
    """
    if not name:
        raise SpecError(f"the {kind} has no name")
    if kind != "ServiceAccount":
        return {"kind": kind, "name": name, "apiGroup": GROUP}
    parts = name.split(":")
    if len(parts) > 2 or not all(parts):
        raise SpecError(f"expected a ServiceAccount as NAME or NAMESPACE:NAME, got '{name}'")
    return {"kind": kind, "name": parts[-1], "namespace": parts[0] if parts[1:] else namespace}


def user_manifests(
    namespace: str, subjects: Sequence[Mapping[str, str]], *, has_routes: bool = False
) -> list[dict[str, Any]]:
    """Return the Role of users in a namespace, and a RoleBinding for each subject.

    Args:
        subjects: Who gets the rights; without any, only the Role is returned.
        has_routes: Whether endpoints have Ingresses or HTTPRoutes.
    """
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in user_rights(has_routes=has_routes):
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    rules = [_rule(group, [resource], found) for (group, resource), found in verbs.items()]
    metadata = {"name": _NAME, "namespace": namespace, "labels": _LABELS}
    head: dict[str, Any] = {"apiVersion": f"{GROUP}/v1"}
    role = {**head, "kind": "Role", "metadata": metadata, "rules": rules}
    bindings = [
        {
            **head,
            "kind": "RoleBinding",
            "metadata": {**metadata, "name": _binding_name(each)},
            "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": _NAME},
            "subjects": [dict(each)],
        }
        for each in subjects
    ]
    return [role, *bindings]


def _binding_name(subject: Mapping[str, str]) -> str:
    """Return a name of its own for each subject: applying a second one keeps the first."""
    parts = [subject["kind"], subject.get("namespace", ""), subject["name"]]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_DIGEST_LENGTH]
    text = re.sub(r"[^a-z0-9]+", "-", "-".join(parts[1:]).lower()).strip("-")
    return "-".join(filter(None, (_NAME, text[:_SLUG_LENGTH].strip("-"), digest)))


def _rule(
    group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()
) -> Rule:
    named = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": list(resources), **named, "verbs": list(verbs)}

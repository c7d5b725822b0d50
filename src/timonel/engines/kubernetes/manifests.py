"""Objects of a job in the cluster, as manifests. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from timonel.engines.base import JobStatus
from timonel.engines.cluster import assign
from timonel.engines.kubernetes import names
from timonel.engines.kubernetes.pod_template import coordinator_template, role_template
from timonel.engines.kubernetes.rights import GROUP, coordinator_rules
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.spec import JobSpec, RoleSpec
from timonel.errors import SpecError
from timonel.storage import digest_bytes

Manifest = dict[str, Any]

_KEPT_S = 7 * 24 * 3600
_COORDINATOR_RETRIES = 1000
_ROLE_RETRIES = 2**31 - 1
_LEASE_S = 60
_MAX_VARIABLE_BYTES = 128 << 10
"""Maximum length of an environment variable with its name: MAX_ARG_STRLEN in execve(2)."""
_RESERVED_BYTES = 1 << 10
"""Part of it for all but the addresses: the variable's name, the task, the reason of a restart."""


def job_manifests(
    spec: JobSpec, settings: ClusterSettings, workspace: str, token: str, status: JobStatus
) -> list[Manifest]:
    """Return the manifests of a job's objects, in the order of their creation.

    The first one is the Job of the coordinator, which owns all others, see `owned`. All Jobs are
    suspended: a coordinator starts those of its roles.

    Args:
        settings: Settings of the cluster, with the namespace of the job.
        token: Secret that pods show to the coordinator.
    """
    _check_name(spec)
    _check_size(spec)
    _check_queue(spec, settings)
    # A resumed job is another group: the Workload of the earlier one may still exist.
    group = f"{spec.job_id}-{digest_bytes(token.encode()).rpartition(':')[2][:4]}"
    return [
        _coordinator_job(spec, settings, workspace),
        _status(status),
        _object(spec.job_id, "v1", "Secret", stringData={names.TOKEN_KEY: token}),
        _object(
            spec.job_id, "coordination.k8s.io/v1", "Lease", spec={"leaseDurationSeconds": _LEASE_S}
        ),
        _service(spec),
        *_rights(spec, settings),
        *(_role_job(spec, role, settings, workspace, group) for role in spec.roles),
    ]


def status_manifest(status: JobStatus, uid: str) -> Manifest:
    """Return the manifest of the ConfigMap with a job's status.

    Args:
        uid: UID of the coordinator's Job.
    """
    owner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": status.job_id}}
    return owned([owner, _status(status)], uid)[0]


def owned(manifests: Sequence[Manifest], uid: str) -> list[Manifest]:
    """Return all manifests but the first, as objects that are deleted with the first one.

    Args:
        manifests: Manifests from `job_manifests`.
        uid: UID of the first one's object.
    """
    owner, *others = manifests
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return [
        {**each, "metadata": {**each["metadata"], "ownerReferences": [reference]}}
        for each in others
    ]


def workspace_of(job: Mapping[str, Any]) -> str | None:
    """Return the URI of the workspace of a coordinator's Job; None for other Jobs."""
    (container, *_) = job["spec"]["template"]["spec"]["containers"]
    command = container.get("command") or [None]
    found: str | None = command[-1]
    return found


def _check_name(spec: JobSpec) -> None:
    longest = max(len(names.pod_hostname("", role.name, role.replicas - 1)) for role in spec.roles)
    allowed = names.MAX_NAME - longest
    if len(spec.job_id) > allowed:
        raise SpecError(
            f"the job name '{spec.job_id}' has {len(spec.job_id)} characters, and Kubernetes "
            f"allows {allowed} with these roles",
            hint="choose a shorter name",
        )


def _check_size(spec: JobSpec) -> None:
    """Check that each task can run programs with the addresses of all in `TF_CONFIG`."""
    addresses = {
        f"{role.name}-{index}": f"{names.address(spec.job_id, hostname)}:65535"
        for role in spec.roles
        for index in range(role.replicas)
        for hostname in [names.pod_hostname(spec.job_id, role.name, index)]
    }
    assignment = next(iter(assign(spec.roles, addresses, generation=1).values()))
    size = len(json.dumps(assignment)) + _RESERVED_BYTES
    if size > _MAX_VARIABLE_BYTES:
        raise SpecError(
            f"{spec.size:,} tasks are too many: their addresses take {-(-size >> 10)} KiB, and "
            f"Linux limits an environment variable to {_MAX_VARIABLE_BYTES >> 10} KiB",
            hint="use fewer tasks with more devices each",
        )


def _check_queue(spec: JobSpec, settings: ClusterSettings) -> None:
    if settings.queue and any(role.is_elastic for role in spec.roles):
        raise SpecError(
            f"an elastic job cannot wait in the queue '{settings.queue}', which admits a fixed "
            "number of tasks",
            hint="give a fixed number of workers, or unset TIMONEL_KUBERNETES_QUEUE",
        )


def _object(
    job_id: str,
    version: str,
    kind: str,
    *,
    role: str = names.COORDINATOR_ROLE,
    **body: Any,
) -> Manifest:
    name = job_id if role == names.COORDINATOR_ROLE else names.role_job(job_id, role)
    metadata = {"name": name, "labels": names.labels(job_id, role)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}


def _coordinator_job(spec: JobSpec, settings: ClusterSettings, workspace: str) -> Manifest:
    body = {
        "suspend": True,
        "backoffLimit": _COORDINATOR_RETRIES,
        # Its next pod does not wait for a pod on a lost node.
        "podReplacementPolicy": "TerminatingOrFailed",
        "ttlSecondsAfterFinished": _KEPT_S,
        "template": coordinator_template(spec, settings, workspace),
    }
    return _object(spec.job_id, "batch/v1", "Job", spec=body)


def _role_job(
    spec: JobSpec, role: RoleSpec, settings: ClusterSettings, workspace: str, group: str
) -> Manifest:
    refused, others = (
        {"containerName": role.name, "operator": operator, "values": [names.EXIT_REFUSED]}
        for operator in ("In", "NotIn")
    )
    body = {
        "suspend": True,
        "completionMode": "Indexed",
        "completions": role.replicas,
        "parallelism": role.replicas,
        # The coordinator limits restarts.
        "backoffLimit": _ROLE_RETRIES,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                {"action": "FailJob", "onExitCodes": refused},
                {"action": "Ignore", "onExitCodes": others},
            ]
        },
        "template": _queued(role_template(spec, role, settings, workspace), spec, settings, group),
    }
    return _object(spec.job_id, "batch/v1", "Job", role=role.name, spec=body)


def _queued(template: Manifest, spec: JobSpec, settings: ClusterSettings, group: str) -> Manifest:
    """Return a pod template whose pods wait until Kueue admits the pods of all roles.

    Pods wait, not their Jobs: Kueue would suspend and unsuspend a Job, as the coordinator does.
    """
    if not settings.queue:
        return template
    labels = {names.QUEUE_LABEL: settings.queue, names.GROUP_LABEL: group, **names.QUEUED}
    annotations = {
        names.GROUP_SIZE_ANNOTATION: str(sum(role.replicas for role in spec.roles)),
        # With its finalizer, deleted pods would remain until others replace them.
        names.QUEUE_PARENT_ANNOTATION: "timonel",
    }
    metadata = template["metadata"]
    metadata = {"labels": {**metadata["labels"], **labels}, "annotations": annotations}
    return {**template, "metadata": metadata}


def _status(status: JobStatus) -> Manifest:
    data = {names.STATUS_KEY: status.model_dump_json()}
    return _object(status.job_id, "v1", "ConfigMap", data=data)


def _service(spec: JobSpec) -> Manifest:
    body = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.job_objects(spec.job_id),
        "ports": [{"name": names.COORDINATOR_ROLE, "port": names.COORDINATOR_PORT}],
    }
    return _object(spec.job_id, "v1", "Service", spec=body)


def _rights(spec: JobSpec, settings: ClusterSettings) -> list[Manifest]:
    """Return the coordinator's rights, and its ServiceAccount unless the user chose one."""
    job_id = spec.job_id
    jobs = [job_id, *(names.role_job(job_id, role.name) for role in spec.roles)]
    account = {
        "kind": "ServiceAccount",
        "name": settings.service_account or job_id,
        "namespace": settings.namespace or "default",
    }
    own = [] if settings.service_account else [_object(job_id, "v1", "ServiceAccount")]
    return [
        *own,
        _object(job_id, f"{GROUP}/v1", "Role", rules=coordinator_rules(job_id, jobs)),
        _object(
            job_id,
            f"{GROUP}/v1",
            "RoleBinding",
            roleRef={"apiGroup": GROUP, "kind": "Role", "name": job_id},
            subjects=[account],
        ),
    ]

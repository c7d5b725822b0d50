"""Pod templates of a job, and parts that those of services share. Pure functions.

All pods meet the ``restricted`` level of the Pod Security Standards, and write only to the folders
``/work`` and ``/tmp`` and to the job's volumes.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.engines.kubernetes import names, variables
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.resources import Placement, Resources, Toleration, Volume
from timonel.engines.spec import JobSpec, RoleSpec
from timonel.errors import SpecError
from timonel.storage.workspace import CLAIM_VARIABLE

_COORDINATOR_REQUESTS = {"cpu": "100m", "memory": "256Mi"}
HOME = {"HOME": "/work/home", "XDG_CACHE_HOME": "/work/cache"}
"""Variables of all pods, for programs that write to the user's folders."""
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
_FOLDERS = {"work": "/work", "tmp": "/tmp"}  # noqa: S108 - the container's
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the container's
POD_USER = 65532
"""User and group of pods in images that timonel builds."""
# A task ends by itself when its coordinator is away for longer.
_LOST_NODE_S = 15
_EXTRA_GRACE_S = 15


@dataclass(frozen=True)
class _Pod:
    """What pods of a role have of their own."""

    role: str
    module: str
    restart_policy: str
    resources: Mapping[str, Any]
    env: Mapping[str, Any]
    service_account: str | None
    placement: Placement
    own: Mapping[str, Any]
    has_shared_memory: bool = False


def coordinator_template(spec: JobSpec, settings: ClusterSettings, workspace: str) -> Any:
    """Return the pod template of a job's coordinator."""
    pod = _Pod(
        role=names.COORDINATOR_ROLE,
        module="timonel.engines.kubernetes.coordinator",
        restart_policy="OnFailure",
        resources={"requests": _COORDINATOR_REQUESTS},
        env={variables.POD_HOST: names.address(spec.job_id, spec.job_id)},
        service_account=settings.service_account or spec.job_id,
        placement=Placement(),
        own={"hostname": spec.job_id, "automountServiceAccountToken": True},
    )
    return _template(pod, spec, settings, workspace)


def role_template(
    spec: JobSpec, role: RoleSpec, settings: ClusterSettings, workspace: str
) -> dict[str, Any]:
    """Return the pod template of a role's tasks."""
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.INDEX_ANNOTATION}']"}}
    # The cluster replaces the variable, as it comes first in the list.
    hostname = names.pod_hostname(spec.job_id, role.name, f"$({variables.INDEX})")
    pod = _Pod(
        role=role.name,
        module="timonel.engines.kubernetes.pod",
        restart_policy="Never",
        resources=resources_of(role.resources),
        env={variables.INDEX: index, variables.POD_HOST: names.address(spec.job_id, hostname)},
        service_account=settings.service_account,
        placement=role.placement,
        own={
            "automountServiceAccountToken": False,
            "affinity": _close_together(spec.job_id),
        },
        has_shared_memory=True,  # input pipelines of several processes need more than 64 MiB
    )
    return _template(pod, spec, settings, workspace)


def _template(
    pod: _Pod, spec: JobSpec, settings: ClusterSettings, workspace: str
) -> dict[str, Any]:
    volumes, mounts = volumes_of(spec.volumes, settings, has_shared_memory=pod.has_shared_memory)
    container = {
        "name": pod.role,
        "image": image_of(f"job {spec.job_id}", spec.image, settings),
        "command": ["python3", "-m", pod.module, spec.job_id, workspace],
        "env": _environment(pod, spec, settings),
        "resources": pod.resources,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
        # The status of the pod then has the last lines of a container that failed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if pod.role == names.COORDINATOR_ROLE:
        container["ports"] = [
            {"name": names.COORDINATOR_ROLE, "containerPort": names.COORDINATOR_PORT}
        ]
    if settings.secret:
        container["envFrom"] = [{"secretRef": {"name": settings.secret}}]
    own = dict(pod.own)
    if pod.service_account:
        own["serviceAccountName"] = pod.service_account
    if pod.placement.priority_class:
        own["priorityClassName"] = pod.placement.priority_class
    if pod.placement.node_selector:
        own["nodeSelector"] = dict(sorted(pod.placement.node_selector.items()))
    if settings.image_pull_secret:
        own["imagePullSecrets"] = [{"name": settings.image_pull_secret}]
    return {
        "metadata": {"labels": names.labels(spec.job_id, pod.role)},
        "spec": {
            **own,
            "subdomain": spec.job_id,
            "restartPolicy": pod.restart_policy,
            "terminationGracePeriodSeconds": math.ceil(spec.stop_grace_s) + _EXTRA_GRACE_S,
            "enableServiceLinks": False,
            "securityContext": pod_security(spec.volumes, settings),
            "tolerations": tolerations_of(pod.placement.tolerations),
            "containers": [container],
            "volumes": volumes,
        },
    }


def image_of(owner: str, image: str | None, settings: ClusterSettings) -> str:
    """Return the image of a job or a service.

    Args:
        owner: What it is the image of, for messages.
    """
    found = image or settings.image
    if not found:
        raise SpecError(
            f"{owner} has no container image",
            hint="make one with 'timonel image build HOST/REPOSITORY:TAG', and give --image or set "
            "TIMONEL_KUBERNETES_IMAGE",
        )
    return found


def _environment(pod: _Pod, spec: JobSpec, settings: ClusterSettings) -> list[dict[str, Any]]:
    token = {"secretKeyRef": {"name": spec.job_id, "key": names.TOKEN_KEY}}
    values: dict[str, Any] = {
        **HOME,
        variables.TOKEN: token,
        variables.COORDINATOR: names.coordinator_address(spec.job_id),
        variables.POD_NAME: {"fieldRef": {"fieldPath": "metadata.name"}},
        variables.ROLE: pod.role,
        **pod.env,
    }
    if settings.mirrors is not None:
        values["TIMONEL_MIRRORS"] = settings.mirrors
    return variables_of(values)


def variables_of(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return environment variables of a container, given as values or as their sources."""
    return [
        {"name": name, "value" if isinstance(value, str) else "valueFrom": value}
        for name, value in sorted(values.items())
    ]


def resources_of(resources: Resources) -> dict[str, Any]:
    """Return the requests and limits of a container."""
    # A limit of CPUs would slow tasks down where CPUs are idle.
    limits: dict[str, str] = {}
    if resources.memory_bytes is not None:
        limits["memory"] = str(resources.memory_bytes)
    for name, count in sorted(resources.accelerators.items()):
        limits[name] = str(count)
    requests = dict(limits)
    if resources.cpus is not None:
        requests["cpu"] = f"{math.ceil(resources.cpus * 1000)}m"
    return {"requests": requests, "limits": limits} if requests else {}


def volumes_of(
    volumes: Sequence[Volume], settings: ClusterSettings, *, has_shared_memory: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod and their mounts, with its writable folders and the claim."""
    sources: list[dict[str, Any]] = [{"name": name, "emptyDir": {}} for name in _FOLDERS]
    mounts: list[dict[str, Any]] = [
        {"name": name, "mountPath": path} for name, path in _FOLDERS.items()
    ]
    if has_shared_memory:
        sources.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shared-memory", "mountPath": _SHARED_MEMORY})
    if claim := settings.claim_mount():
        sources.append({"name": "claim", "persistentVolumeClaim": {"claimName": claim[0]}})
        mounts.append({"name": "claim", "mountPath": claim[1]})
    _check_paths(volumes, mounts, claim)
    for number, volume in enumerate(volumes):
        name = f"volume-{number}"
        sources.append({"name": name, **_volume_source(volume)})
        read_only = {"readOnly": True} if volume.read_only else {}
        mounts.append({"name": name, "mountPath": volume.mount_path, **read_only})
    return sources, mounts


def _check_paths(
    volumes: Sequence[Volume], mounts: Sequence[Mapping[str, Any]], claim: tuple[str, str] | None
) -> None:
    """Check that each volume has a path of its own."""
    taken = {each["mountPath"]: "a folder of timonel" for each in mounts}
    if claim:
        taken[claim[1]] = f"the claim '{claim[0]}' of {CLAIM_VARIABLE}"
    for volume in volumes:
        path = posixpath.normpath(volume.mount_path)
        if path in taken:
            raise SpecError(
                f"cannot mount '{volume.source}' at {path}: {taken[path]} is mounted there",
                hint="mount it at another path, or leave it out",
            )
        taken[path] = f"'{volume.source}'"


def _volume_source(volume: Volume) -> dict[str, Any]:
    scheme, separator, name = volume.source.partition("://")
    if separator and scheme == "emptydir" and not name:
        return {"emptyDir": {}}
    if separator and scheme == "pvc" and name and "/" not in name:
        read_only = {"readOnly": True} if volume.read_only else {}
        return {"persistentVolumeClaim": {"claimName": name, **read_only}}
    if separator and scheme == "configmap" and name and "/" not in name:
        return {"configMap": {"name": name}}
    if separator and scheme == "secret" and name and "/" not in name:
        return {"secret": {"secretName": name}}
    raise SpecError(
        f"Kubernetes cannot mount the volume '{volume.source}'",
        hint="use pvc://NAME, configmap://NAME, secret://NAME, or emptydir:// for a temporary "
        "folder",
    )


def pod_security(volumes: Iterable[Volume], settings: ClusterSettings) -> dict[str, Any]:
    """Return the security context of a pod."""
    security: dict[str, Any] = {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    group = POD_USER
    if settings.user:
        uid, group = map(int, settings.user.split(":"))
        security |= {"runAsUser": uid, "runAsGroup": group}
    # New file systems belong to root. A user's claim keeps the groups of its files.
    has_claim = settings.claim is not None and not settings.user
    if has_claim or any(volume.source.startswith("pvc://") for volume in volumes):
        security |= {"fsGroup": group, "fsGroupChangePolicy": "OnRootMismatch"}
    return security


def tolerations_of(accepted: Iterable[Toleration]) -> list[dict[str, Any]]:
    """Return the tolerations of a pod, which leaves nodes that do not answer."""
    tolerations: list[dict[str, Any]] = [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _LOST_NODE_S,
        }
        for condition in ("not-ready", "unreachable")
    ]
    for each in accepted:
        values = {"operator": "Exists"} if each.value is None else {"value": each.value}
        effect = {} if each.effect is None else {"effect": each.effect}
        tolerations.append({"key": each.key, **values, **effect})
    return tolerations


def _close_together(job_id: str) -> dict[str, Any]:
    term = {
        "labelSelector": {"matchLabels": names.job_objects(job_id)},
        "topologyKey": "topology.kubernetes.io/zone",
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}

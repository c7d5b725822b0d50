"""Pod template of a service's replicas. Pure functions.

Probes have whole seconds as periods, so times of the health check are rounded up. As each pod has
an address, all replicas listen on the same ports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from timonel.engines.kubernetes import names, variables
from timonel.engines.kubernetes.pod_template import (
    CONTAINER_SECURITY,
    HOME,
    image_of,
    pod_security,
    resources_of,
    tolerations_of,
    variables_of,
    volumes_of,
)
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.service_spec import ServiceSpec, Sidecar, port_variables
from timonel.errors import SpecError

_SHARED = "/shared"
_READY_FAILURES = 3
# Few probes are enough to notice a hang; each failed one is an event of the pod.
_HANG_PROBES = 5
_KILL_GRACE_S = 1


def replica_template(spec: ServiceSpec, settings: ClusterSettings) -> dict[str, Any]:
    """Return the pod template of a service's replicas."""
    sidecar = spec.sidecar
    volumes, mounts = volumes_of(
        spec.volumes, settings, has_shared_memory=bool(spec.resources.accelerators)
    )
    if sidecar is not None:
        volumes.append({"name": "shared", "emptyDir": {}})
        mounts.append({"name": "shared", "mountPath": _SHARED})
    ports = _ports(spec)
    image = image_of(f"service {spec.name}", spec.image, settings)
    env = variables_of(_environment(spec, settings, ports, image))
    replica = _replica(spec, settings, ports)
    common = {"image": image, "env": env, "volumeMounts": mounts}
    own: dict[str, Any] = {}
    if sidecar is not None:
        own["initContainers"] = [{**_sidecar(sidecar), **common}]
    account = settings.service_account or (spec.name if spec.uses_engine else None)
    if account:
        own["serviceAccountName"] = account
    if spec.placement.priority_class:
        own["priorityClassName"] = spec.placement.priority_class
    if spec.placement.node_selector:
        own["nodeSelector"] = dict(sorted(spec.placement.node_selector.items()))
    if settings.image_pull_secret:
        own["imagePullSecrets"] = [{"name": settings.image_pull_secret}]
    labels = {**names.service_labels(spec.name), names.REVISION_LABEL: str(spec.revision)}
    # A grace of 0 would remove a pod before its processes have ended.
    grace_s = max(1, math.ceil(spec.stop_delay_s) + math.ceil(spec.stop_grace_s))
    return {
        "metadata": {"labels": labels},
        "spec": {
            **own,
            "automountServiceAccountToken": spec.uses_engine,
            "terminationGracePeriodSeconds": grace_s,
            "enableServiceLinks": False,
            "securityContext": pod_security(spec.volumes, settings),
            "tolerations": tolerations_of(spec.placement.tolerations),
            "topologySpreadConstraints": [_spread(spec)],
            "containers": [{**replica, **common}],
            "volumes": volumes,
        },
    }


def _ports(spec: ServiceSpec) -> dict[str, int]:
    """Return the ports of a replica by name: the first ones that its sidecar leaves."""
    used = set(spec.sidecar.ports.values()) if spec.sidecar else set()
    numbers = range(names.FIRST_PORT, names.FIRST_PORT + len(spec.ports) + len(used))
    free = (number for number in numbers if number not in used)
    return dict(zip(spec.ports, free, strict=False))


def _replica(
    spec: ServiceSpec, settings: ClusterSettings, ports: Mapping[str, int]
) -> dict[str, Any]:
    program = ["python3", "-m", spec.module] if spec.module else list(spec.command)
    container: dict[str, Any] = {
        "name": names.REPLICA,
        "command": program,
        "args": list(spec.args),
        "ports": _container_ports(ports),
        "resources": resources_of(spec.resources),
        "securityContext": CONTAINER_SECURITY,
        # The last lines of its output explain how it ended.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_probes(spec, ports[spec.checked_port]),
    }
    if settings.secret:
        container["envFrom"] = [{"secretRef": {"name": settings.secret}}]
    if spec.stop_delay_s > 0:
        delay = {"sleep": {"seconds": math.ceil(spec.stop_delay_s)}}
        container["lifecycle"] = {"preStop": delay}
    return container


def _sidecar(sidecar: Sidecar) -> dict[str, Any]:
    """Return a sidecar, which starts before its replica, and ends after it."""
    if sidecar.name == names.REPLICA:
        raise SpecError(f"the name of a sidecar cannot be '{names.REPLICA}'")
    container: dict[str, Any] = {
        "name": sidecar.name,
        "restartPolicy": "Always",
        "command": list(sidecar.command),
        "ports": _container_ports(sidecar.ports),
        "resources": resources_of(sidecar.resources),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if sidecar.ready_path is not None:
        if not sidecar.ports:
            raise SpecError(f"the sidecar {sidecar.name} has a path to check, and no port")
        port = next(iter(sidecar.ports.values()))
        container["readinessProbe"] = {
            **_action(port, sidecar.ready_path),
            "periodSeconds": 1,
            "timeoutSeconds": 1,
            "failureThreshold": _READY_FAILURES,
        }
    return container


def _container_ports(ports: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "containerPort": port} for name, port in ports.items()]


def _probes(spec: ServiceSpec, port: int) -> dict[str, Any]:
    check = spec.check
    period_s, timeout_s = math.ceil(check.period_s), math.ceil(check.timeout_s)
    ready = {
        **_action(port, check.ready_path),
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
    }
    # The first probe comes at once, so one more fits into the time.
    starts = math.ceil(spec.start_timeout_s / period_s) + 1
    probes = {
        "startupProbe": {
            **ready,
            "failureThreshold": starts,
            "terminationGracePeriodSeconds": _KILL_GRACE_S,
        },
        "readinessProbe": {**ready, "failureThreshold": _READY_FAILURES},
    }
    if check.alive_path is not None:
        alive_s = max(period_s, math.ceil(spec.hang_timeout_s / _HANG_PROBES))
        silent = math.ceil(max(0.0, spec.hang_timeout_s - timeout_s) / alive_s) + 1
        probes["livenessProbe"] = {
            **_action(port, check.alive_path),
            "periodSeconds": alive_s,
            "timeoutSeconds": timeout_s,
            "failureThreshold": silent,
            "terminationGracePeriodSeconds": _KILL_GRACE_S,
        }
    return probes


def _action(port: int, path: str | None) -> dict[str, Any]:
    if path is None:
        return {"tcpSocket": {"port": port}}
    return {"httpGet": {"path": path, "port": port}}


def _environment(
    spec: ServiceSpec, settings: ClusterSettings, ports: Mapping[str, int], image: str
) -> dict[str, Any]:
    """Return variables by name; those that the cluster must fill in are sources.

    Kubernetes replaces ``$(NAME)`` in values too, which the specification does not ask for.
    """
    values: dict[str, Any] = {
        **HOME,
        **{name: value.replace("$", "$$") for name, value in spec.env.items()},
        **port_variables(ports),
        "HOST": {"fieldRef": {"fieldPath": "status.podIP"}},
        variables.POD_NAME: {"fieldRef": {"fieldPath": "metadata.name"}},
    }
    if spec.sidecar is not None:
        values["SHARED"] = _SHARED
    if spec.workspace is not None:
        values["TIMONEL_WORKSPACE"] = spec.workspace
    if settings.mirrors is not None:
        values["TIMONEL_MIRRORS"] = settings.mirrors
    if spec.uses_engine:
        values |= settings.model_copy(update={"image": image}).variables()
    return values


def _spread(spec: ServiceSpec) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.service_objects(spec.name)},
        "matchLabelKeys": ["pod-template-hash"],
    }

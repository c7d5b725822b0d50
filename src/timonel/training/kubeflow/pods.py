"""Parse pod templates of a Kubeflow job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from timonel.engines.resources import Placement, Resources, Toleration, Volume
from timonel.errors import SpecError
from timonel.training.kubeflow.commands import expand
from timonel.training.kubeflow.fields import Fields
from timonel.units import parse_quantity

_SETTING = "set TIMONEL_KUBERNETES_{} instead"
_CREDENTIALS = "give a Secret with TIMONEL_KUBERNETES_SECRET, whose keys become variables"
_ITEMS = "rename the keys of the {} to the file names in items, and remove items"
_WATCHED = "timonel watches its tasks itself"
NOTED: Mapping[str, Mapping[str, str]] = {
    "template.metadata": dict.fromkeys(
        ("labels", "annotations", "name"), "timonel labels its pods itself"
    ),
    "template.spec": {
        "restartPolicy": "the replica's restartPolicy counts, as in Kubeflow",
        "affinity": "pods are kept close together; use nodeSelector",
        "topologySpreadConstraints": "pods are kept close together; use nodeSelector",
        "schedulerName": "the cluster's scheduler is used",
        "serviceAccountName": _SETTING.format("SERVICE_ACCOUNT"),
        "serviceAccount": _SETTING.format("SERVICE_ACCOUNT"),
        "automountServiceAccountToken": "tasks get no token",
        "imagePullSecrets": _SETTING.format("IMAGE_PULL_SECRET"),
        "securityContext": "pods meet the restricted level of Pod Security",
        "dnsPolicy": "the cluster's default is used",
        "enableServiceLinks": "service links are off",
        "hostname": "tasks have names of their own",
        "subdomain": "tasks have names of their own",
    },
    "container": {
        "ports": "the engine chooses the ports in TF_CONFIG",
        "imagePullPolicy": "the cluster's default is used",
        "securityContext": "pods meet the restricted level of Pod Security",
        "livenessProbe": _WATCHED,
        "readinessProbe": _WATCHED,
        "startupProbe": _WATCHED,
        "terminationMessagePath": _WATCHED,
        "terminationMessagePolicy": _WATCHED,
        "stdin": "tasks have no terminal",
        "tty": "tasks have no terminal",
    },
    "toleration": {"tolerationSeconds": "the engine replaces pods of lost nodes itself"},
    "emptyDir": {
        "medium": "temporary folders are on the node's disk",
        "sizeLimit": "temporary folders have no limit",
    },
}
"""Fields without effect, with the reason, by object."""
REFUSED: Mapping[str, Mapping[str, str]] = {
    "template.spec": {
        "initContainers": "prepare files in the image, or in a volume",
        "hostNetwork": "remove it: tasks need addresses of their own",
        "hostPID": "remove it",
        "hostIPC": "remove it",
        "tolerations": "give each toleration a key",
    },
    "container": {
        "envFrom": _CREDENTIALS,
        "lifecycle": "do it in the program",
        "volumeDevices": "use volumeMounts",
    },
    "env": {"valueFrom": _CREDENTIALS},
    "volumeMount": {
        "subPath": "mount the whole volume",
        "subPathExpr": "mount the whole volume",
        "mountPropagation": "remove it",
    },
    "volume": dict.fromkeys(
        ("hostPath", "nfs", "csi", "projected", "ephemeral"),
        "use a persistentVolumeClaim, an emptyDir, or a bucket",
    ),
    "configMap": {"items": _ITEMS.format("ConfigMap")},
    "secret": {"items": _ITEMS.format("Secret")},
}
"""Known fields that are refused, with the cure, by object."""
_PROVIDED = frozenset({"/dev/shm", "/tmp"})  # noqa: S108 - the container's
_SOURCES = {
    "persistentVolumeClaim": ("pvc", "claimName"),
    "configMap": ("configmap", "name"),
    "secret": ("secret", "secretName"),
}
"""Schemes of `Volume.source`, and the fields with names, by kind of volume."""
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True)
class PodSpec:
    """What a job takes from a pod template."""

    image: str | None
    has_command: bool  # in the manifest, and not in the image
    command: tuple[str, ...]  # with arguments, and with variables expanded
    working_dir: str | None  # in the container
    env: Mapping[str, str]
    resources: Resources
    placement: Placement
    volumes: tuple[Volume, ...]
    stop_grace_s: int | None  # None: the engine's

    def of_machines(self, but: PodSpec | None = None) -> Iterator[str]:
        """Yield the names of its fields about machines, unless another pod has the same."""
        if self.image != (but and but.image):
            yield "image"
        if self.resources != Resources():
            yield "resources"
        if self.placement not in (Placement(), but and but.placement):
            yield "nodeSelector, tolerations and priorityClassName"
        if set(self.volumes) - set(but.volumes if but else ()):
            yield "volumes"


def parse_template(template: Fields, container_name: str | None) -> PodSpec:
    """Parse a pod template with one container, which has a name that the operator expects."""
    metadata = template.child("metadata")
    metadata.note(NOTED["template.metadata"])
    metadata.close()
    spec = template.child("spec")
    template.close()
    spec.note(NOTED["template.spec"])
    containers = spec.children("containers")
    shown = "" if container_name is None else f"'{container_name}', "
    if len(containers) != 1:
        cure = "add the container of the program, with its image and command"
        if containers:
            cure = "remove sidecars; timonel has logs and metrics of its own"
        raise SpecError(
            f"{spec.at('containers')} must have one container, {shown}got {len(containers)}",
            hint=cure,
        )
    container = containers[0]
    name = container.take("name", str)
    if container_name is not None and name != container_name:
        raise SpecError(f"{container.at('name')} must be '{container_name}', got '{name}'")
    placement = Placement(
        node_selector=spec.mapping("nodeSelector"),
        tolerations=tuple(_toleration(each) for each in spec.children("tolerations")),
        priority_class=spec.take("priorityClassName", str),
    )
    sources = _sources(spec)
    grace_s = spec.amount("terminationGracePeriodSeconds")
    spec.close(REFUSED["template.spec"])
    env = _env(container)
    command = container.texts("command")
    args = container.texts("args")
    found = PodSpec(
        image=container.take("image", str),
        has_command=bool(command),
        command=tuple(expand(word, env) for word in (*command, *args)),
        working_dir=container.take("workingDir", str),
        env=env,
        resources=_resources(container.child("resources")),
        placement=placement,
        volumes=tuple(_mounts(container, sources)),
        stop_grace_s=grace_s,
    )
    container.note(NOTED["container"])
    container.close(REFUSED["container"])
    return found


def _env(container: Fields) -> dict[str, str]:
    env: dict[str, str] = {}
    for each in container.children("env"):
        name, value = each.take("name", str), each.take("value", str)
        each.close(REFUSED["env"])
        if not name:
            raise SpecError(f"{each.path} has no name")
        env[name] = expand(value or "", env)
    if env.pop("TF_CONFIG", None) is not None:
        container.notes["TF_CONFIG in env has no effect: the engine sets it"] = None
    return env


def _toleration(fields: Fields) -> Toleration:
    key = fields.take("key", str)
    operator = fields.choice("operator", ("Equal", "Exists"))
    value = fields.take("value", str)
    effect: Any = fields.choice("effect", ("", *_EFFECTS)) or None
    fields.note(NOTED["toleration"])
    fields.close()
    if not key:
        raise SpecError(
            f"{fields.path} tolerates all taints, which is not supported",
            hint=REFUSED["template.spec"]["tolerations"],
        )
    return Toleration(key=key, value=None if operator == "Exists" else value or "", effect=effect)


def _sources(spec: Fields) -> dict[str, tuple[str, bool]]:
    sources: dict[str, tuple[str, bool]] = {}
    for each in spec.children("volumes"):
        name = each.take("name", str)
        if not name:
            raise SpecError(f"{each.path} has no name")
        if name in sources:
            raise SpecError(
                f"{each.at('name')} repeats the volume '{name}'", hint="give each volume its name"
            )
        sources[name] = _source(each)
    return sources


def _source(fields: Fields) -> tuple[str, bool]:
    """Return the source of a pod's volume, and whether it is read-only."""
    kinds = [kind for kind in (*_SOURCES, "emptyDir") if kind in fields.values]
    if not kinds and "emptyDir" in fields.nulls:  # which Kubernetes accepts, too
        kinds = ["emptyDir"]
    parts = {kind: fields.child(kind) for kind in (*_SOURCES, "emptyDir")}
    fields.close(REFUSED["volume"])
    if len(kinds) != 1:
        raise SpecError(
            f"{fields.path} must have one of {', '.join(parts)}, got {', '.join(kinds) or 'none'}"
        )
    kind, part = kinds[0], parts[kinds[0]]
    if kind == "emptyDir":
        part.note(NOTED["emptyDir"])
        part.close()
        return "emptydir://", False
    scheme, field = _SOURCES[kind]
    name = part.take(field, str)
    read_only = part.take("readOnly", bool) if scheme == "pvc" else None
    part.close(REFUSED.get(kind))
    if not name:
        raise SpecError(f"{part.at(field)} is missing")
    return f"{scheme}://{name}", bool(read_only)


def _mounts(container: Fields, sources: Mapping[str, tuple[str, bool]]) -> Iterator[Volume]:
    for each in container.children("volumeMounts"):
        name, path = each.take("name", str), each.take("mountPath", str)
        read_only = each.take("readOnly", bool)
        each.close(REFUSED["volumeMount"])
        if name is None or name not in sources:
            raise SpecError(f"{each.at('name')} must be a volume of the pod, got '{name}'")
        if not path or not path.startswith("/"):
            raise SpecError(f"{each.at('mountPath')} must be an absolute path, got '{path}'")
        source, is_read_only = sources[name]
        if source == "emptydir://" and path in _PROVIDED:
            each.notes[f"the emptyDir at {path} has no effect: the engine mounts its own"] = None
        else:
            yield Volume(source=source, mount_path=path, read_only=bool(read_only) or is_read_only)


def _resources(fields: Fields) -> Resources:
    """Return the requests, or limits without them; memory is the limit, as the engine limits it."""
    limits, requests = (_quantities(fields.child(name)) for name in ("limits", "requests"))
    fields.close()
    merged = {**limits, **requests}
    if "memory" in limits:
        merged["memory"] = limits["memory"]
    cpus, memory = merged.pop("cpu", None), merged.pop("memory", None)
    accelerators = {}
    for name, value in merged.items():
        if "/" not in name:
            fields.notes[f"the resource {name} has no effect: the engine requests none"] = None
        elif (count := _quantity(value)) is None or count.denominator != 1:
            raise SpecError(f"{fields.path}: {name} must be a whole number, got '{value}'")
        elif count:
            accelerators[name] = int(count)
    return Resources(
        cpus=None if cpus is None else _cpus(fields, cpus),
        memory_bytes=None if memory is None else _bytes(fields, memory),
        accelerators=accelerators,
    )


def _quantities(fields: Fields) -> dict[str, str]:
    found = {}
    for name, value in fields.values.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise SpecError(f"{fields.at(name)} must be a quantity such as 2 or 4Gi")
        found[name] = str(value)
    return found


def _quantity(text: str) -> Fraction | None:
    try:
        return parse_quantity(text)
    except SpecError:
        return None


def _cpus(fields: Fields, text: str) -> float:
    cpus = _quantity(text)
    if cpus is None or not 0 < cpus < 1e6:
        raise SpecError(f"{fields.path}: cpu must be a quantity such as 500m or 2, got '{text}'")
    return float(cpus)


def _bytes(fields: Fields, text: str) -> int:
    size = _quantity(text)
    if not size:
        raise SpecError(f"{fields.path}: memory must be a quantity such as 4Gi, got '{text}'")
    return math.ceil(size)

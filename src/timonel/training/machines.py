"""What a job asks of the machines that run its tasks: resources, placement, storage, image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from timonel.engines import JobSpec, Placement, Resources, RoleSpec, Toleration, Volume
from timonel.errors import SpecError
from timonel.units import parse_bytes

_GPU = "nvidia.com/gpu"
_TOLERATION = re.compile(r"([^=:\s]+)(?:=([^=:\s]*))?(?::(\w+))?\Z")
_VOLUME = re.compile(r"([a-z]+://[^:\s]*):(/[^:]*)(:ro)?\Z")


@dataclass(frozen=True)
class Machines:
    """What each task of a job needs; what is not stated stays as the job has it."""

    resources: Resources = field(default_factory=Resources)
    accelerators: Mapping[str, int] = field(default_factory=dict)  # not of parameter servers
    placement: Placement = field(default_factory=Placement)
    volumes: tuple[Volume, ...] = ()
    image: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Machines:
        """Parse the options of the panel `MACHINES` among all options of `train`."""
        placement = Placement(
            node_selector=dict(
                _pair("--node-selector", text, "LABEL=VALUE, such as pool=gpu")
                for text in options["node_selector"]
            ),
            tolerations=tuple(map(_toleration, options["toleration"])),
            priority_class=options["priority_class"],
        )
        return cls(
            _resources(options["cpus"], options["memory"]),
            _accelerators(options["gpus"], options["accelerator"]),
            placement,
            tuple(map(_volume, options["volume"])),
            options["image"],
        )

    def complete(self, spec: JobSpec) -> JobSpec:
        """Return a job's specification with these needs instead of its own."""
        update: dict[str, object] = {"roles": tuple(map(self._role, spec.roles))}
        if self.image is not None:
            update["image"] = self.image
        if self.volumes:
            update["volumes"] = self.volumes
        return spec.model_copy(update=update)

    def _role(self, role: RoleSpec) -> RoleSpec:
        given = self.resources.model_dump(exclude_defaults=True)
        if self.accelerators and role.name != "ps":
            given["accelerators"] = dict(self.accelerators)
        placed = {name: getattr(self.placement, name) for name in self.placement.model_fields_set}
        placed = {name: value for name, value in placed.items() if value}
        return role.model_copy(
            update={
                "resources": role.resources.model_copy(update=given),
                "placement": role.placement.model_copy(update=placed),
            }
        )


def _accelerators(gpus: int | None, others: Sequence[str]) -> dict[str, int]:
    if gpus is not None and gpus < 1:
        raise SpecError(f"--gpus must be at least 1, got {gpus}")
    found = {} if gpus is None else {_GPU: gpus}
    for text in others:
        name, count = _pair("--accelerator", text, "TYPE=COUNT, such as google.com/tpu=4")
        if not (count.isascii() and count.isdigit() and int(count)):
            raise SpecError(f"--accelerator: expected a number of at least 1, got {text!r}")
        found[name] = int(count)
    return found


def _resources(cpus: float | None, memory: int | str | None) -> Resources:
    try:
        size = None if memory is None else parse_bytes(memory)
        return Resources(cpus=cpus, memory_bytes=size)
    except SpecError as error:
        raise SpecError(f"--memory: {error.message}", hint=error.hint) from error
    except ValidationError:
        raise SpecError(
            f"--cpus and --memory must be more than 0, got {cpus} and {memory}"
        ) from None


def _pair(flag: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise SpecError(f"{flag}: expected {form}, got {text!r}")
    return name, value


def _toleration(text: str) -> Toleration:
    found = _TOLERATION.match(text)
    fields = {} if found is None else {"key": found[1], "value": found[2] or None}
    try:
        return Toleration.model_validate({**fields, "effect": found[3] if found else None})
    except ValueError:
        raise SpecError(
            "--toleration: expected KEY[=VALUE][:EFFECT], such as pool=gpu:NoSchedule, "
            f"got {text!r}",
            hint="effects are NoSchedule, PreferNoSchedule and NoExecute",
        ) from None


def _volume(text: str) -> Volume:
    found = _VOLUME.match(text)
    if found is None:
        raise SpecError(
            f"--volume: expected SOURCE:PATH[:ro], such as pvc://photos:/photos:ro, got {text!r}"
        )
    return Volume(source=found[1], mount_path=found[2], read_only=found[3] is not None)

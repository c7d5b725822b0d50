"""What this machine can and cannot give to a job or a service."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from timonel.engines.resources import Placement, Resources, Volume
from timonel.engines.service_spec import ServiceSpec
from timonel.engines.source import is_archive
from timonel.engines.spec import JobSpec
from timonel.errors import NotFoundError, SpecError
from timonel.processes.cores import usable_cores
from timonel.storage.uris import is_local, local_path

_NVIDIA = "nvidia.com/gpu"


def check_admission(spec: JobSpec) -> None:
    """Refuse what this machine does not have."""
    _check_containers("the job", spec.image, spec.volumes)
    _check_source(spec)
    for role in spec.roles:
        _check_placement(f"the role {role.name}", role.placement)
    _check_amounts("the job", [(role.least, role.resources) for role in spec.roles])


def check_service_admission(spec: ServiceSpec) -> None:
    """Refuse a service of which this machine cannot run a single replica."""
    _check_containers("the service", spec.image, spec.volumes)
    if spec.sidecar is not None:
        raise SpecError(
            "the service has a sidecar, which the local engine does not run",
            hint="make it a service of its own",
        )
    _check_placement("the service", spec.placement)
    _check_amounts("the service", [(1, spec.resources)])


def _check_source(spec: JobSpec) -> None:
    if spec.source is None:
        raise SpecError("the local engine needs the source of a job: a folder or an archive")
    if is_archive(spec.source):
        return
    if not is_local(spec.source):
        raise SpecError(f"expected a folder of this machine or an archive, got {spec.source}")
    if not local_path(spec.source).is_dir():
        raise NotFoundError(f"the working folder does not exist: {local_path(spec.source)}")


def _check_containers(owner: str, image: str | None, volumes: Sequence[Volume]) -> None:
    for name, value in (("an image", image), ("volumes", volumes)):
        if value:
            raise SpecError(
                f"{owner} has {name}, but the local engine runs processes of this machine",
                hint=f"remove {name}, or choose another engine",
            )


def _check_placement(owner: str, placement: Placement) -> None:
    for name, value in (
        ("node selectors", placement.node_selector),
        ("tolerations", placement.tolerations),
        ("a priority class", placement.priority_class),
    ):
        if value:
            raise SpecError(
                f"{owner} has {name}, but the local engine has one machine",
                hint=f"remove its {name}, or choose another engine",
            )


def _check_amounts(owner: str, needs: Iterable[tuple[int, Resources]]) -> None:
    needed: dict[str, float] = defaultdict(float)
    for replicas, resources in needs:
        needed["CPUs"] += replicas * (resources.cpus or 0)
        needed["bytes of memory"] += replicas * (resources.memory_bytes or 0.0)
        for kind, count in resources.accelerators.items():
            needed[kind] += replicas * count
    present: dict[str, float] = {
        "CPUs": usable_cores(),
        "bytes of memory": psutil.virtual_memory().total,
        _NVIDIA: len(list(Path("/dev").glob("nvidia[0-9]*"))),
    }
    for name, amount in needed.items():
        if amount > present.get(name, 0):
            raise SpecError(
                f"{owner} needs {amount:,g} {name}, but this machine has {present.get(name, 0):,g}",
                hint="ask for less, or choose another engine",
            )

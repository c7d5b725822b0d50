"""What this machine can and cannot give to a job."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import psutil

from timonel.engines.source import is_archive
from timonel.engines.spec import JobSpec
from timonel.errors import NotFoundError, SpecError
from timonel.processes.cores import usable_cores
from timonel.storage.uris import is_local, local_path

_NVIDIA = "nvidia.com/gpu"


def check_admission(spec: JobSpec) -> None:
    """Refuse what this machine does not have.

    Raises:
        SpecError: The job asks for something that only clusters have, or for more than there is.
        NotFoundError: The folder of its source does not exist.
    """
    _check_source(spec)
    for role in spec.roles:
        for name, value in (
            ("node selectors", role.placement.node_selector),
            ("tolerations", role.placement.tolerations),
        ):
            if value:
                raise SpecError(
                    f"the role {role.name} has {name}, but the local engine has one machine",
                    hint=f"remove its {name}, or choose another engine",
                )
    _check_amounts(spec)


def _check_source(spec: JobSpec) -> None:
    for name, value in (("an image", spec.image), ("volumes", spec.volumes)):
        if value:
            raise SpecError(
                f"the job has {name}, but the local engine runs processes of this machine",
                hint=f"remove {name}, or choose another engine",
            )
    if spec.source is None:
        raise SpecError("the local engine needs the source of a job: a folder or an archive")
    if is_archive(spec.source):
        return
    if not is_local(spec.source):
        raise SpecError(f"expected a folder of this machine or an archive, got {spec.source}")
    if not local_path(spec.source).is_dir():
        raise NotFoundError(f"the working folder does not exist: {local_path(spec.source)}")


def _check_amounts(spec: JobSpec) -> None:
    wanted: dict[str, float] = defaultdict(float)
    for role in spec.roles:
        wanted["CPUs"] += role.least * (role.resources.cpus or 0)
        wanted["bytes of memory"] += role.least * (role.resources.memory_bytes or 0.0)
        for kind, count in role.resources.accelerators.items():
            wanted[kind] += role.least * count
    present: dict[str, float] = {
        "CPUs": usable_cores(),
        "bytes of memory": psutil.virtual_memory().total,
        _NVIDIA: len(list(Path("/dev").glob("nvidia[0-9]*"))),
    }
    for name, amount in wanted.items():
        if amount > present.get(name, 0):
            raise SpecError(
                f"the job needs {amount:,g} {name}, but this machine has {present.get(name, 0):,g}",
                hint="ask for less, or choose another engine",
            )

"""MPI launcher: locate mpirun, and build a cluster from its ranks.

mpirun starts the ranks once. They exchange their addresses, leave MPI, and train like tasks of any
other launcher, over TensorFlow's own collectives. Rank 0 is the chief.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from timonel.errors import MissingExtraError, SpecError
from timonel.processes.ports import PortReservation
from timonel.training.cluster import Cluster
from timonel.training.settings import Settings

_FEATURE, _EXTRA = "--launcher mpi", "mpi"
# Variables of Open MPI, MPICH and Intel MPI.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOOPBACK = "127.0.0.1"
_SIGKILL_AFTER_S = 20
_OF_MPIRUN = {
    # Ranks share the available cores, like other tasks; Open MPI would refuse more ranks than
    # cores, or bind each to a single core. Older and newer releases use different names.
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    # Time for the other ranks to save and exit when one is lost.
    "OMPI_MCA_odls_base_sigkill_timeout": str(_SIGKILL_AFTER_S),
    "PRTE_MCA_odls_base_sigkill_timeout": str(_SIGKILL_AFTER_S),
}
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass(frozen=True)
class Rank:
    """This process among those started by mpirun.

    Attributes:
        cluster: All ranks with their addresses, and this one's position.
        port: Reserves this rank's address while it trains.
    """

    cluster: Cluster
    port: PortReservation


def is_rank(environ: Mapping[str, str]) -> bool:
    """Tell whether mpirun started this process."""
    return any(name in environ for name in _RANKS)


def is_first(environ: Mapping[str, str]) -> bool:
    """Tell whether this is rank 0, or no rank of mpirun's."""
    return all(environ.get(name, "0") == "0" for name in _RANKS)


def rank_count(environ: Mapping[str, str]) -> int | None:
    """Return the number of ranks, if mpirun reveals it before joining."""
    found = (environ.get(name, "") for name in _SIZES)
    return next((int(text) for text in found if text.isdecimal()), None)


def check_launcher(settings: Settings) -> None:
    """Check that mpirun can start a job with these settings.

    Raises:
        SpecError: The settings need roles or ranges that MPI does not support.
        MissingExtraError: MPI is not installed.
    """
    wanted = settings.distribution
    if settings.uses_parameter_servers or settings.parameter_servers.ps:
        raise SpecError("--launcher mpi does not support parameter servers")
    if settings.evaluation.evaluator:
        raise SpecError("--launcher mpi does not support an evaluator")
    if wanted.min_workers < wanted.workers:
        raise SpecError(
            "--launcher mpi needs a fixed number of workers, got "
            f"{wanted.min_workers}:{wanted.workers}",
            hint="MPI ranks start and end together",
        )
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingExtraError(_FEATURE, _EXTRA)


def find_mpirun() -> str:
    """Return mpirun's path, beside this Python or else the system's.

    Raises:
        MissingExtraError: mpirun is not installed.
    """
    own = Path(sys.executable).with_name("mpirun")
    found = str(own) if os.access(own, os.X_OK) else shutil.which("mpirun")
    if found is None:
        raise MissingExtraError(_FEATURE, _EXTRA)
    return found


def mpirun(program: Sequence[str], ranks: int) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts ``program`` as ``ranks`` ranks, and its environment."""
    as_root = _AS_ROOT if os.geteuid() == 0 else {}
    # Variables set by the user take precedence.
    environ = {**_OF_MPIRUN, **as_root, **os.environ}
    return [find_mpirun(), "-np", str(ranks), *program], environ


def join() -> tuple[Rank, Any]:
    """Join the other ranks; return this rank and the communicator.

    Raises:
        MissingExtraError: mpi4py is not installed.
    """
    world = _mpi().COMM_WORLD
    port = PortReservation(1)
    number = port.addresses[0].rpartition(":")[2]
    places = world.allgather((socket.gethostname(), _address(), number))
    addresses = _addresses(places)
    return Rank(_cluster(addresses, world.Get_rank()), port), world


def leave() -> None:
    """Finalize MPI; a rank that fails afterwards still ends the others."""
    _mpi().Finalize()


def _cluster(addresses: Sequence[str], rank: int) -> Cluster:
    tasks = {"chief": tuple(addresses[:1]), "worker": tuple(addresses[1:])}
    present = {role: found for role, found in tasks.items() if found}
    return Cluster(present, "worker" if rank else "chief", max(0, rank - 1))


def _addresses(places: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return each rank's address, on loopback if all share one host."""
    is_one_host = len({host for host, _, _ in places}) == 1
    return [f"{_LOOPBACK if is_one_host else address}:{port}" for _, address, port in places]


def _address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return _LOOPBACK  # a host that cannot resolve its own name has no peers


def _mpi() -> ModuleType:
    try:
        from mpi4py import MPI  # noqa: PLC0415 - importing it starts MPI
    except ImportError as error:
        raise MissingExtraError(_FEATURE, _EXTRA) from error
    return MPI

"""MPI launcher: locate mpirun, and build a cluster from its ranks.

mpirun starts the ranks once. They exchange their addresses, leave MPI, and train like tasks of any
other launcher, over TensorFlow's own collectives. Rank 0 is the chief.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from timonel.errors import MissingExtraError
from timonel.processes.ports import PortReservation
from timonel.training.cluster import Cluster

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


def check_installed() -> None:
    """Check that mpirun can start a job."""
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingExtraError(_FEATURE, _EXTRA)
    find_mpirun()


def find_mpirun() -> str:
    """Return mpirun's path: beside this Python, among the packages of an image, or the system's."""
    # `timonel image build` installs packages with their programs into one folder.
    of_packages = Path(__file__).parents[2] / "bin/mpirun"
    for own in (Path(sys.executable).with_name("mpirun"), of_packages):
        if os.access(own, os.X_OK):
            return str(own)
    found = shutil.which("mpirun")
    if found is None:
        raise MissingExtraError(_FEATURE, _EXTRA)
    return found


def mpirun(program: Sequence[str], ranks: int) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts ``program`` as ``ranks`` ranks, and its environment."""
    as_root = _AS_ROOT if os.geteuid() == 0 else {}
    # Variables set by the user take precedence.
    environ = {**_OF_MPIRUN, **as_root, **os.environ}
    return [find_mpirun(), "-np", str(ranks), *program], environ


@contextlib.contextmanager
def joined() -> Iterator[tuple[Cluster, Any]]:
    """Join the other ranks; yield this rank's place among them, and the communicator.

    The address of this rank is reserved during the block.
    """
    world = _mpi().COMM_WORLD
    with PortReservation(1) as (own,):
        places = world.allgather((socket.gethostname(), _address(), own.rpartition(":")[2]))
        is_one_host = len({host for host, _, _ in places}) == 1
        addresses = [f"{_LOOPBACK if is_one_host else ip}:{port}" for _, ip, port in places]
        tasks = {"chief": tuple(addresses[:1]), "worker": tuple(addresses[1:])}
        present = {role: found for role, found in tasks.items() if found}
        rank = world.Get_rank()
        yield Cluster(present, "worker" if rank else "chief", max(0, rank - 1)), world


def leave() -> None:
    """Finalize MPI; a rank that fails afterwards still ends the others."""
    _mpi().Finalize()


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

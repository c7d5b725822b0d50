from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from timonel.errors import MissingExtraError
from timonel.training import mpi as ranks


def test_whether_mpirun_has_started_this() -> None:
    assert not ranks.is_rank({"PATH": "/bin"})
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"):
        assert ranks.is_rank({name: "0"})


def test_which_rank_is_the_first() -> None:
    assert ranks.is_first({})
    assert ranks.is_first({"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"})
    assert not ranks.is_first({"OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1"})
    assert not ranks.is_first({"PMI_RANK": "3"})


def test_how_many_ranks_there_are() -> None:
    assert ranks.rank_count({}) is None
    assert ranks.rank_count({"OMPI_COMM_WORLD_SIZE": "3"}) == 3
    assert ranks.rank_count({"PMI_SIZE": "2"}) == 2


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"--launcher mpi needs the extra 'mpi'"):
        ranks.check_installed()
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingExtraError, match=r"timonel\[mpi\]"), ranks.joined():
        pass
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingExtraError, match="the extra 'mpi'"):
        ranks.find_mpirun()


def test_mpirun_beside_this_python_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/mpirun")
    assert ranks.find_mpirun() == "/usr/bin/mpirun"
    (tmp_path / "mpirun").touch(mode=0o755)
    assert ranks.find_mpirun() == str(tmp_path / "mpirun")


def test_mpirun_among_the_packages_of_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(ranks, "__file__", str(tmp_path / "timonel/training/mpi.py"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mpirun").touch(mode=0o755)
    assert ranks.find_mpirun() == str(tmp_path / "bin/mpirun")


@pytest.mark.parametrize("user", [0, 1000])
def test_what_mpirun_is_told(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    monkeypatch.setattr(ranks, "find_mpirun", lambda: "mpirun")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("PRTE_MCA_hwloc_default_binding_policy", "core")
    command, environ = ranks.mpirun(["python", "x.py"], 3)
    assert command == ["mpirun", "-np", "3", "python", "x.py"]
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in environ) == (user == 0)
    assert environ["PRTE_MCA_hwloc_default_binding_policy"] == "core"  # the user's own choice
    assert environ["OMPI_MCA_hwloc_base_binding_policy"] == "none"


class World:
    """What one of three ranks sees of the others."""

    def __init__(self, rank: int, hosts: tuple[str, ...]) -> None:
        self.rank = rank
        self.hosts = hosts

    def allgather(self, mine: tuple[str, str, str]) -> list[tuple[str, str, str]]:
        places = [(host, f"ip-{host}", str(7000 + n)) for n, host in enumerate(self.hosts)]
        places[self.rank] = (self.hosts[self.rank], f"ip-{self.hosts[self.rank]}", mine[2])
        return places

    def Get_rank(self) -> int:  # noqa: N802 - MPI's name
        return self.rank


@pytest.mark.parametrize(
    ("hosts", "address"),
    [(("a", "a", "a"), "127.0.0.1:7000"), (("a", "b", "b"), "ip-a:7000")],
)
def test_ranks_are_a_cluster(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], address: str
) -> None:
    class Mpi:
        COMM_WORLD = World(2, hosts)

    monkeypatch.setattr(ranks, "_mpi", lambda: Mpi)
    with ranks.joined() as (cluster, world):
        assert world is Mpi.COMM_WORLD
        assert cluster.task_id == "worker-1"
        assert cluster.tasks["chief"] == (address,)
        own = int(cluster.tasks["worker"][1].rpartition(":")[2])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", own))

"""Conversions on standalone clusters of Flink and Spark, whose workers are killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.data.conftest import MakeImages
from tests.data.runners import clusters
from tests.data.runners.clusters import Cluster
from tests.storage.conftest import open_bucket, set_credentials
from tests.waiting import until
from timonel.data.conversion import convert
from timonel.data.shards import ConversionJournal
from timonel.storage import Workspace, digest_tree
from timonel.storage.object_store import ObjectStore

pytestmark = [
    pytest.mark.beam,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        clusters.JARS is None, reason="needs Java and the jars of make test-beam (Maven)"
    ),
]

SHARDS = 100
PROGRAM = """
import sys
from timonel.data import convert
_, root, out, workspace, options = sys.argv
convert(root, out, shards=100, workspace=workspace, runner="beam", beam=options)
"""


@pytest.fixture(scope="module", params=["flink", "spark"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, s3_server: str
) -> Iterator[Cluster]:
    start: Callable[[Path], contextlib.AbstractContextManager[Cluster]] = getattr(
        clusters, request.param
    )
    with pytest.MonkeyPatch.context() as patch:
        # For the workers, which the cluster's processes start.
        set_credentials(patch, s3_server)
        with start(tmp_path_factory.mktemp(request.param)) as made:
            yield made


class Conversion:
    """A conversion in a process of its own, on a cluster."""

    def __init__(self, cluster: Cluster, root: Path, out: Path, workspace: Workspace) -> None:
        self.cluster, self.out = cluster, out
        arguments = [str(root), str(out), workspace.uri, cluster.options]
        self.log = out.parent / "client.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments], stdout=log, stderr=log
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def finished(self) -> int:
        """Return the number of finished shards."""
        return len(list((ConversionJournal.beside(self.out).root / "finished").glob("*.json")))

    def reach(self, shards: int) -> None:
        """Wait until so many shards are finished."""
        until(lambda: self.process.poll() is not None or self.finished() >= shards, seen=self.logs)
        assert self.process.poll() is None, self.logs()

    def logs(self) -> str:
        """Return the client's log and those of the cluster."""
        return f"{self.log.read_text()[-3000:]}\n{self.cluster.logs()}"


@pytest.fixture
def root(make_images: MakeImages) -> Path:
    return make_images(count=2000, size=(64, 64))


def same_shards(one: Path, other: Path) -> bool:
    left_out = ("manifest.json",)
    return digest_tree(one, exclude=left_out) == digest_tree(other, exclude=left_out)


def test_a_killed_machine_changes_no_byte(
    cluster: Cluster, root: Path, tmp_path: Path, workspace: Workspace
) -> None:
    local = convert(root, tmp_path / "local", shards=SHARDS, workspace=workspace)
    (tmp_path / "out").mkdir()
    with Conversion(cluster, root, tmp_path / "out" / "set", workspace) as conversion:
        conversion.reach(5)
        with stopped(cluster.children("pool")):
            assert conversion.finished() < SHARDS
            name = busy(cluster)
            children = cluster.children(name)
            cluster.kill(name)
            for child in children:  # the executor of a worker of Spark
                child.kill()
        until(lambda: conversion.process.poll() is not None, seen=conversion.logs)
        assert conversion.process.returncode == 0, conversion.logs()
    assert same_shards(conversion.out, local.path)


def test_a_stopped_client_cancels_its_job(
    cluster: Cluster, root: Path, tmp_path: Path, workspace: Workspace
) -> None:
    (tmp_path / "out").mkdir()
    with Conversion(cluster, root, tmp_path / "out" / "set", workspace) as conversion:
        conversion.reach(2)
        with stopped(cluster.children("pool")):
            conversion.process.send_signal(signal.SIGTERM)
            assert conversion.process.wait(60) == 128 + signal.SIGTERM
    before = conversion.finished()
    assert before < SHARDS
    until(lambda: not running(cluster), seen=cluster.logs)
    assert conversion.finished() <= before + 2  # those that were being written
    continued = convert(root, conversion.out, shards=SHARDS, workspace=workspace)
    whole = convert(root, tmp_path / "whole", shards=SHARDS, workspace=workspace)
    assert same_shards(continued.path, whole.path)


def test_a_cluster_without_a_common_file_system(
    cluster: Cluster,
    make_images: MakeImages,
    tmp_path: Path,
    workspace: Workspace,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = make_images(count=200)
    for bucket in open_bucket("s3", request, monkeypatch):
        raw = {path.relative_to(root).as_posix(): path for path in root.rglob("*.png")}
        ObjectStore(f"{bucket}/raw").upload(raw)
        beam = f"{cluster.options},temp_location={bucket}/temp"
        made = [
            convert(
                f"{bucket}/raw",
                tmp_path / runner,
                shards=10,
                workspace=workspace,
                runner=runner,
                beam=beam if runner == "beam" else "",
            )
            for runner in ("beam", "local")
        ]
        assert made[0].digest == made[1].digest


@contextlib.contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Stop processes for a while, so that the conversion does not end meanwhile."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def busy(cluster: Cluster) -> str:
    """Return the name of a process that runs tasks of the conversion."""
    if "jobmanager" not in cluster.processes:
        return "worker1"
    (job,) = (job for job in cluster.ask("/jobs/overview")["jobs"] if job["state"] == "RUNNING")
    for vertex in cluster.ask(f"/jobs/{job['jid']}")["vertices"]:
        found = cluster.ask(f"/jobs/{job['jid']}/vertices/{vertex['id']}/taskmanagers")
        for manager in found["taskmanagers"]:
            if manager["status"] == "RUNNING":
                return str(manager["taskmanager-id"])
    raise AssertionError(cluster.logs())


def running(cluster: Cluster) -> bool:
    """Tell whether the cluster runs a job."""
    if "jobmanager" in cluster.processes:
        states = [job["state"] for job in cluster.ask("/jobs/overview")["jobs"]]
        return bool({"CREATED", "RUNNING", "RESTARTING", "CANCELLING"} & set(states))
    return bool(cluster.ask("/json/")["activeapps"])

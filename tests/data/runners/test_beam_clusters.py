"""Conversions on standalone clusters of Flink and Spark, whose workers are killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.buckets import open_bucket
from tests.data.conftest import MakeImages
from tests.data.runners import clusters
from tests.data.runners.clusters import Client, Cluster, stopped
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
_, options, root, out, workspace = sys.argv
convert(root, out, shards=100, workspace=workspace, runner="beam", beam=options)
"""


@pytest.fixture
def root(make_images: MakeImages) -> Path:
    return make_images(count=2000, size=(64, 64))


def same_shards(one: Path, other: Path) -> bool:
    left_out = ("manifest.json",)
    return digest_tree(one, exclude=left_out) == digest_tree(other, exclude=left_out)


def conversion(cluster: Cluster, root: Path, out: Path, workspace: Workspace) -> Client:
    """Start a conversion in a process of its own."""
    out.parent.mkdir()
    finished, log = ConversionJournal.beside(out).root / "finished", out.parent / "client.log"
    return Client(cluster, PROGRAM, str(root), str(out), workspace.uri, finished=finished, log=log)


def test_a_killed_machine_changes_no_byte(
    beam_cluster: Cluster, root: Path, tmp_path: Path, workspace: Workspace
) -> None:
    local = convert(root, tmp_path / "local", shards=SHARDS, workspace=workspace)
    out = tmp_path / "out" / "set"
    with conversion(beam_cluster, root, out, workspace) as client:
        client.lose_a_machine(SHARDS)
    assert same_shards(out, local.path)


def test_a_stopped_client_cancels_its_job(
    beam_cluster: Cluster, root: Path, tmp_path: Path, workspace: Workspace
) -> None:
    out = tmp_path / "out" / "set"
    with conversion(beam_cluster, root, out, workspace) as client:
        client.reach(2)
        with stopped(beam_cluster.children("pool")):
            client.process.send_signal(signal.SIGTERM)
            assert client.process.wait(60) == 128 + signal.SIGTERM
    before = client.finished()
    assert before < SHARDS
    until(lambda: not beam_cluster.has_jobs(), seen=beam_cluster.logs)
    assert client.finished() <= before + 2  # those that were being written
    continued = convert(root, out, shards=SHARDS, workspace=workspace)
    whole = convert(root, tmp_path / "whole", shards=SHARDS, workspace=workspace)
    assert same_shards(continued.path, whole.path)


def test_a_cluster_without_a_common_file_system(
    beam_cluster: Cluster,
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
        beam = f"{beam_cluster.options},temp_location={bucket}/temp"
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

"""A workspace on a claim: the submitter and all pods mount one folder, and there is no bucket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

import timonel
from tests.cluster.conftest import Cluster
from tests.cluster.test_jobs import ClusterHarness
from tests.cluster.test_training import ended, results, wait_for_metrics
from tests.training.conftest import SCRIPTS
from tests.waiting import until
from timonel import train
from timonel.engines import JobState
from timonel.engines.kubernetes import KubernetesEngine
from timonel.errors import EngineError
from timonel.storage import find_workspace
from timonel.training.handles import Job, Run

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    # The registry and the nodes are in network namespaces of this machine.
    pytest.mark.enable_socket,
]
_USER = os.getuid() or 1000


@dataclass
class Member:
    """A user of a team, who runs commands on a machine that mounts the team's claim.

    Attributes:
        cluster: The cluster.
        home: A folder of this machine, with scripts.
        team: The folder on the claim.
        env: Environment of the commands.
    """

    cluster: Cluster
    home: Path
    team: Path
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> str:
        """Run a command in the workspace and return its output."""
        command = [sys.executable, "-m", "timonel", "-w", str(self.team / "ws"), *arguments]
        if os.getuid() == 0:
            # The interpreter may be in root's folder: the user may read everything.
            caps = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
            user = [f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
            command = ["setpriv", *user, *caps, *command]
        env = {**os.environ, **self.env}
        done = subprocess.run(
            command,
            cwd=self.home / "scripts",
            env=env,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def harness(self) -> ClusterHarness:
        workspace = find_workspace(self.team / "ws", create=False)
        engine = KubernetesEngine.of(workspace)
        return ClusterHarness(engine, "", cluster=self.cluster, workspace=workspace)

    def paced(self, *options: str) -> Run:
        shown = self.run(
            *("train", "paced.py", "--on", "kubernetes", "--workers", "2", "--seed", "3"),
            *("--checkpoint-steps", "2", "--detach", "--json", *options, "--", "12"),
        )
        run_id = json.loads(shown)["id"]
        harness = self.harness()
        assert harness.workspace is not None
        return Run(run_id, harness.workspace, Job(run_id, harness.engine))


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that other users reach, unlike those of pytest."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def make_claim(cluster: Cluster, folder: Path) -> str:
    """Make a claim of a folder of the nodes, which they share."""
    name = f"claim-{uuid.uuid4().hex[:8]}"
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **spec,
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": str(folder), "type": "Directory"},
        "claimRef": {"namespace": cluster.namespace, "name": name},
    }
    request = {**spec, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    for kind, body in (("PersistentVolume", volume), ("PersistentVolumeClaim", request)):
        cluster.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": body})
    cluster.run("wait", f"pvc/{name}", "--for=jsonpath={.status.phase}=Bound", "--timeout=60s")
    return name


def delete_claim(cluster: Cluster, name: str) -> None:
    for kind in ("pvc", "pv"):
        cluster.run("delete", kind, name, "--wait=false")


@pytest.fixture
def member(
    cluster: Cluster, job_image: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Member]:
    if not cluster.is_own:
        pytest.skip("only nodes of kubelab share the folders of this machine")
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    home, team = base / "home", base / "team"
    shutil.copytree(SCRIPTS, home / "scripts")
    for folder in (home, team):
        folder.mkdir(exist_ok=True)
        os.chown(folder, _USER, _USER)
    claim = make_claim(cluster, team)
    source = str(Path(timonel.__file__).parent.parent)
    settings = {
        "KUBECONFIG": cluster.kubeconfig,
        "TIMONEL_KUBERNETES_NAMESPACE": cluster.namespace,
        "TIMONEL_KUBERNETES_IMAGE": job_image,
        "TIMONEL_KUBERNETES_CLAIM": f"{claim}:{team}",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))
    env = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": source}
    made = Member(cluster, home, team, env)
    yield made
    if (team / "ws/FORMAT").exists():
        engine = made.harness().engine
        for status in engine.jobs():
            cluster.run("delete", "job", status.job_id, "--wait=false")
            until(lambda: not made.harness().pods(status.job_id), timeout_s=120)  # noqa: B023
    delete_claim(cluster, claim)


def write_images(folder: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(120):
        label = number % 2
        pixels = random.integers(0, 120, (8, 8), dtype=np.uint8)
        pixels[:, label * 4 : label * 4 + 4] += 100
        split = "train" if number < 96 else "validation" if number < 108 else "test"
        place = folder / split / ("left", "right")[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number}.png")


def test_from_images_to_an_endpoint(
    member: Member, server_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = member.run("cluster", "check", "--run", "--plain-http")
    assert "can be written and read" in shown
    assert "printed 'timonel " in shown
    write_images(tmp_path / "raw")
    data = member.team / "set"
    member.run("convert", str(tmp_path / "raw"), str(data))
    shown = member.run(
        *("train", "plain.py", "--data", str(data), "--on", "kubernetes", "--workers", "2"),
        *("--seed", "7", "--json"),
    )
    record = json.loads(shown)
    assert record["status"] == "succeeded"
    harness = member.harness()
    assert harness.workspace is not None
    run = Run(record["id"], harness.workspace, Job(record["id"], harness.engine))
    found = results(harness, run)
    assert found["chief-0"]["weights"] == found["worker-0"]["weights"]
    # Pods read the dataset where it is, and all files are the user's.
    assert not (member.team / "ws/staged").exists()
    assert {path.stat().st_uid for path in member.team.rglob("*")} == {_USER}
    member.run("export", run.id, "--name", "halves")
    monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", server_image)
    member.run("deploy", "halves", "--on", "kubernetes")
    try:
        place = member.cluster.run(
            *("get", "service", "halves"),
            *("-o", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}"),
        )
        image = np.zeros((1, 8, 8, 1)).tolist()
        answer = httpx.post(f"http://{place}/v1/models/halves:predict", json={"instances": image})
        assert answer.status_code == 200, answer.text
        assert np.shape(answer.json()["predictions"]) == (1, 2)
    finally:
        member.run("endpoints", "delete", "halves", "--yes")
        shown = ("get", "pods", "-l", "timonel.dev/service", "-o", "name")
        until(lambda: not member.cluster.run(*shown), timeout_s=180)


def test_a_lost_worker_continues_at_its_step(member: Member) -> None:
    undisturbed = member.paced()
    assert undisturbed.job.wait().state is JobState.SUCCEEDED
    harness = member.harness()
    run = member.paced()
    wait_for_metrics(run)
    harness.kubectl("delete", *harness.pods(run.id, "worker"), "--wait=false")
    status = ended("worker's pod deleted", run)
    assert status.state is JobState.SUCCEEDED, status
    assert status.restarts >= 1
    assert results(harness, run) == results(harness, undisturbed)


def fail(member: Member) -> str:
    """Return why a job fails that pods cannot run."""
    with pytest.raises(EngineError) as error:
        train(
            member.home / "scripts/paced.py",
            args=["1"],
            workspace=member.team / "ws",
            on="kubernetes",
        )
    return error.value.message


def test_a_claim_of_other_storage_fails_the_job(
    member: Member, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "other").mkdir(mode=0o777)
    claim = make_claim(member.cluster, base / "other")
    monkeypatch.setenv("TIMONEL_KUBERNETES_CLAIM", f"{claim}:{member.team}")
    monkeypatch.setattr(os, "geteuid", lambda: _USER)  # jobs of root are refused
    monkeypatch.chdir(member.home / "scripts")
    try:
        message = fail(member)
    finally:
        delete_claim(member.cluster, claim)
    assert "pods cannot use the workspace: no workspace at shared:///" in message
    assert message.endswith("the claim must be the storage that the submitting machine has there")


def test_a_folder_that_pods_cannot_read_fails_the_job(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid():
        pytest.skip("only root's pods run as another user")
    monkeypatch.setattr(os, "geteuid", lambda: _USER)  # jobs of root are refused
    monkeypatch.chdir(member.home / "scripts")
    assert "access denied" in (message := fail(member))
    assert f"user {_USER} needs write access" in message

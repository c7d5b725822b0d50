"""Training on a real cluster: the tasks share only a bucket; nodes, pods and processes are lost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cluster.conftest import KUBELAB, Cluster
from tests.cluster.test_jobs import ClusterHarness
from tests.training.conftest import SCRIPTS
from timonel import export, train
from timonel.data import convert
from timonel.engines import JobState
from timonel.engines.kubernetes import KubernetesEngine
from timonel.errors import UserCodeError
from timonel.models.exports import verify_export
from timonel.storage import Workspace, find_workspace
from timonel.training.handles import Run

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    # The registry, the nodes and the bucket are in network namespaces of this machine.
    pytest.mark.enable_socket,
]


@pytest.fixture
def workspace(job_image: str, job_bucket: str, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace in a bucket, with settings for the cluster."""
    monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", job_image)
    return find_workspace(job_bucket)


@pytest.fixture
def pods(cluster: Cluster, workspace: Workspace) -> ClusterHarness:
    engine = KubernetesEngine.of(workspace)
    return ClusterHarness(engine, "", cluster=cluster, workspace=workspace)


def results(pods: ClusterHarness, run: Run) -> dict[str, Any]:
    """Return what the tasks of a run have written."""
    found = {task: pods.read_file(f"{task}.json", run.id) for task in ("chief-0", "worker-0")}
    return {task: json.loads(text or "null") for task, text in found.items()}


def test_two_workers_train_as_one(
    pods: ClusterHarness, workspace: Workspace, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    for number in range(120):
        label = number % 2
        pixels = random.integers(0, 120, (8, 8), dtype=np.uint8)
        pixels[:, label * 4 : label * 4 + 4] += 100
        split = "train" if number < 96 else "validation" if number < 108 else "test"
        folder = tmp_path / "raw" / split / ("left", "right")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    dataset = convert(tmp_path / "raw", f"{workspace.uri}/set", workspace=workspace)
    run = train(
        SCRIPTS / "plain.py",
        data=dataset.uri,
        workspace=workspace,
        on=pods.engine,
        workers=2,
        seed=7,
    )
    found = results(pods, run)
    assert found["chief-0"]["weights"] == found["worker-0"]["weights"]
    assert run.record.status == "succeeded"
    assert export(run.id, name="halves", workspace=workspace).number == 1
    assert verify_export(workspace.jobs / run.id / "export").model.parameters > 0


def test_an_error_of_the_script_is_shown(pods: ClusterHarness, workspace: Workspace) -> None:
    with pytest.raises(UserCodeError, match="the user's mistake"):
        train(SCRIPTS / "broken.py", workspace=workspace, on=pods.engine, workers=2)


def kill_process(pods: ClusterHarness, run: Run) -> None:
    pods.kill_task(run.id, "worker-0")


def delete_worker(pods: ClusterHarness, run: Run) -> None:
    pods.kubectl("delete", *pods.pods(run.id, "worker"), "--wait=false")


def delete_chief(pods: ClusterHarness, run: Run) -> None:
    pods.kubectl("delete", *pods.pods(run.id, "chief"), "--wait=false")


def delete_coordinator(pods: ClusterHarness, run: Run) -> None:
    pods.kubectl("delete", *pods.pods(run.id, "coordinator"), "--wait=false")


def kill_coordinator(pods: ClusterHarness, run: Run) -> None:
    (pod,) = pods.pods(run.id, "coordinator")
    pods.kubectl("delete", pod, "--grace-period=0", "--force")


@pytest.mark.parametrize(
    "lose", [kill_process, delete_worker, delete_chief, delete_coordinator, kill_coordinator]
)
def test_what_is_lost_continues_at_its_step(
    pods: ClusterHarness,
    workspace: Workspace,
    lose: Callable[[ClusterHarness, Run], None],
) -> None:
    expected = undisturbed(pods, workspace)
    run = paced(pods, workspace, detach=True)
    wait_for_metrics(run)
    lose(pods, run)
    lost_at = time.monotonic()
    status = run.job.wait()
    print(f"{lose.__name__}: ended {time.monotonic() - lost_at:.1f} s later")
    assert status.state is JobState.SUCCEEDED, status
    assert status.restarts >= 1
    assert results(pods, run) == expected


def test_a_lost_node_does_not_hang_a_job(
    cluster: Cluster, pods: ClusterHarness, workspace: Workspace
) -> None:
    if not cluster.is_own:
        pytest.skip("a node is killed only in a cluster of the tests' own")
    run = paced(pods, workspace, detach=True, epochs=40)
    wait_for_metrics(run)
    (pod,) = pods.pods(run.id, "worker")
    name = pods.kubectl("get", pod, "-o", "jsonpath={.spec.nodeName}")
    number = name.removeprefix("node")
    subprocess.run([str(KUBELAB), "node-kill", number], check=True)
    try:
        lost_at = time.monotonic()
        status = run.job.wait()
        print(f"node-kill: ended {time.monotonic() - lost_at:.1f} s later")
        assert status.state is JobState.SUCCEEDED, status
        assert status.restarts >= 1  # two, where the coordinator was on that node too
    finally:
        subprocess.run([str(KUBELAB), "node-start", number], check=True)


_undisturbed: list[dict[str, Any]] = []


def undisturbed(pods: ClusterHarness, workspace: Workspace) -> dict[str, Any]:
    """Return the results of a run that loses nothing; trained once for all tests."""
    if not _undisturbed:
        _undisturbed.append(results(pods, paced(pods, workspace, detach=False)))
    return _undisturbed[0]


def paced(pods: ClusterHarness, workspace: Workspace, *, detach: bool, epochs: int = 12) -> Run:
    return train(
        SCRIPTS / "paced.py",
        args=[str(epochs)],
        workspace=workspace,
        on=pods.engine,
        workers=2,
        seed=3,
        checkpoint_steps=2,
        detach=detach,
    )


def wait_for_metrics(run: Run) -> None:
    while sum(event["type"] == "metrics" for event in run.record.events()) < 2:
        time.sleep(0.5)
        assert not run.job.status().state.is_final, run.job.status()

"""Training on a real cluster: the tasks share only a bucket; nodes, pods and processes are lost."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cluster.conftest import KUBELAB, BucketServer, Cluster
from tests.cluster.test_jobs import ClusterHarness
from tests.training.conftest import SCRIPTS
from timonel import export, train
from timonel.data import convert
from timonel.engines import JobState, JobStatus
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
_AWAY_S = 30.0


@pytest.fixture
def workspace(job_image: str, job_bucket: str, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace in a bucket, with settings for the cluster."""
    monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", job_image)
    return find_workspace(job_bucket)


@pytest.fixture
def pods(
    cluster: Cluster, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClusterHarness]:
    # In the repository, all of its files would go to the bucket.
    monkeypatch.chdir(shutil.copytree(SCRIPTS, tmp_path / "scripts"))
    engine = KubernetesEngine.of(workspace)
    yield ClusterHarness(engine, "", cluster=cluster, workspace=workspace)
    for status in engine.jobs():
        cluster.run("delete", "job", status.job_id, "--wait=false")


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
        "plain.py",
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
        train("broken.py", workspace=workspace, on=pods.engine, workers=2)


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
    status = ended(lose.__name__, run)
    assert status.state is JobState.SUCCEEDED, status
    assert status.restarts >= 1
    assert results(pods, run) == expected


@pytest.mark.parametrize("role", ["worker", "coordinator"])
def test_a_lost_node_does_not_hang_a_job(
    cluster: Cluster, pods: ClusterHarness, workspace: Workspace, role: str
) -> None:
    skip_unless_own(cluster)
    run = paced(pods, workspace, detach=True, epochs=40)
    wait_for_metrics(run)
    node = node_of(pods, run, role)
    kubelab("node-kill", node.removeprefix("node"))
    try:
        status = ended(f"node of {role} killed", run)
    finally:
        kubelab("node-start", node.removeprefix("node"))
        cluster.run("wait", f"node/{node}", "--for=condition=Ready", "--timeout=120s")
    assert status.state is JobState.SUCCEEDED, status
    assert status.restarts >= 1  # two, where the coordinator was on that node too


def test_a_node_without_kubelet_goes_on(
    cluster: Cluster, pods: ClusterHarness, workspace: Workspace
) -> None:
    skip_unless_own(cluster)
    run = paced(pods, workspace, detach=True, epochs=100)
    wait_for_metrics(run)
    node = node_of(pods, run, "worker")
    (worker,) = pods.pods(run.id, "worker")
    kubelab("kubelet-stop", node.removeprefix("node"))
    try:
        cluster.run(
            "wait", worker, "--for=jsonpath={.metadata.deletionTimestamp}", "--timeout=180s"
        )
        status = ended("kubelet-stop, from the deletion of its pod", run)
    finally:
        kubelab("kubelet-start", node.removeprefix("node"))
        cluster.run("wait", f"node/{node}", "--for=condition=Ready", "--timeout=120s")
    assert (status.state, status.restarts) == (JobState.SUCCEEDED, 0), status


def test_a_drained_node_is_left(
    cluster: Cluster, pods: ClusterHarness, workspace: Workspace
) -> None:
    expected = undisturbed(pods, workspace)
    run = paced(pods, workspace, detach=True)
    wait_for_metrics(run)
    node = node_of(pods, run, "worker")
    try:
        # Only this job's pods: others may use the cluster.
        selector = f"--pod-selector=timonel.dev/job={run.id}"
        cluster.run("drain", node, "--delete-emptydir-data", selector, "--timeout=120s")
        status = ended("drain", run)
    finally:
        cluster.run("uncordon", node)
    assert status.state is JobState.SUCCEEDED, status
    assert status.restarts >= 1
    assert results(pods, run) == expected


def test_training_goes_on_while_the_bucket_is_away(
    bucket_server: BucketServer, pods: ClusterHarness, workspace: Workspace
) -> None:
    if bucket_server.process is None:
        pytest.skip("only a server of the tests' own is paused")
    expected = undisturbed(pods, workspace)
    run = paced(pods, workspace, detach=True)
    wait_for_metrics(run)
    bucket_server.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(_AWAY_S)
    finally:
        bucket_server.process.send_signal(signal.SIGCONT)
    status = ended("bucket away", run)
    assert (status.state, status.restarts) == (JobState.SUCCEEDED, 0), status
    assert results(pods, run) == expected


def test_training_goes_on_while_the_api_server_is_away(
    cluster: Cluster, pods: ClusterHarness, workspace: Workspace
) -> None:
    skip_unless_own(cluster)
    expected = undisturbed(pods, workspace)
    run = paced(pods, workspace, detach=True)
    wait_for_metrics(run)
    kubelab("exec", "cp", "pkill", "-STOP", "kube-apiserver")
    try:
        time.sleep(_AWAY_S)
    finally:
        kubelab("exec", "cp", "pkill", "-CONT", "kube-apiserver")
    status = ended("API server away", run)
    assert (status.state, status.restarts) == (JobState.SUCCEEDED, 0), status
    assert results(pods, run) == expected


def test_parameter_servers_and_an_evaluator(
    pods: ClusterHarness, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The script also runs with tf-keras, which the image does not have.
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    run = train(
        "judged.py",
        workspace=workspace,
        on=pods.engine,
        ps=1,
        workers=2,
        evaluator=True,
        params={"epochs": 4},
    )
    assert (run.record.status, run.record.restarts) == ("succeeded", 0)
    chief, evaluator = printed(run, "chief-0"), printed(run, "evaluator-0")
    assert chief["histories"] == evaluator["histories"]
    assert chief["evaluated"]["loss"] == pytest.approx(evaluator["evaluated"]["loss"], rel=1e-4)


def test_ranks_of_mpirun_train_in_one_pod(pods: ClusterHarness, workspace: Workspace) -> None:
    run = train(
        "paced.py",
        args=["2"],
        workspace=workspace,
        on=pods.engine,
        launcher="mpi",
        workers=2,
        seed=3,
    )
    found = results(pods, run)
    assert found["chief-0"] == found["worker-0"]
    assert len(found["chief-0"]["loss"]) == 2


def printed(run: Run, task_id: str) -> dict[str, Any]:
    """Return the result that a task has printed last."""
    lines = [line.text for line in run.job.logs(task_id=task_id)]
    found = [line.removeprefix("RESULT ") for line in lines if line.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(found[-1])
    return result


def test_an_elastic_job_grows_and_shrinks(pods: ClusterHarness, workspace: Workspace) -> None:
    run = paced(pods, workspace, detach=True, epochs=200, workers="1:3")
    for workers in (3, 1, 2):
        run.job.scale(workers)
        wait_for_workers(run, workers)
        wait_for_metrics(run)
    run.job.stop()
    status = ended("scaled and stopped", run)
    assert status.state is JobState.STOPPED, status


def test_an_elastic_job_goes_on_without_a_node_and_grows_with_it(
    cluster: Cluster, pods: ClusterHarness, workspace: Workspace
) -> None:
    skip_unless_own(cluster)
    # A node has two CPUs: room for one worker, and for a coordinator.
    run = paced(pods, workspace, detach=True, epochs=1000, workers="1:3", cpus=1.1)
    wait_for_workers(run, 3)
    wait_for_metrics(run)
    needed = {*nodes_of(pods, run, "chief"), *nodes_of(pods, run, "coordinator")}
    node = next(node for node in nodes_of(pods, run, "worker") if node not in needed)
    kubelab("node-kill", node.removeprefix("node"))
    try:
        wait_for_workers(run, 2)
        wait_for_metrics(run)
    finally:
        kubelab("node-start", node.removeprefix("node"))
        cluster.run("wait", f"node/{node}", "--for=condition=Ready", "--timeout=120s")
    wait_for_workers(run, 3)
    wait_for_metrics(run)
    run.job.stop()
    status = ended("a node lost and back, then stopped", run)
    assert status.state is JobState.STOPPED, status
    assert status.restarts == 1


def wait_for_workers(run: Run, workers: int) -> None:
    """Wait until this many workers run, the chief among them."""
    begun = time.monotonic()
    while workers_of(run) != workers:
        time.sleep(0.5)
        assert not run.job.status().state.is_final, run.job.status()
    print(f"{workers} workers after {time.monotonic() - begun:.1f} s")


def workers_of(run: Run) -> int:
    """Return how many workers run, the chief among them; 0 while the job restarts."""
    status = run.job.status()
    if status.state is not JobState.RUNNING:
        return 0
    return sum(task.state == "running" for task in status.tasks)


def test_ten_jobs_at_once(pods: ClusterHarness, workspace: Workspace) -> None:
    started_at = time.monotonic()
    runs = [paced(pods, workspace, detach=True, workers=1) for _ in range(10)]
    print(f"ten jobs: submitted after {time.monotonic() - started_at:.1f} s")
    statuses = [run.job.wait() for run in runs]
    restarts = sum(each.restarts for each in statuses)  # of pods that were silent under load
    print(f"ten jobs: ended after {time.monotonic() - started_at:.1f} s, {restarts} restarts")
    assert {each.state for each in statuses} == {JobState.SUCCEEDED}
    files = {pods.read_file("chief-0.json", run.id) for run in runs}
    assert len(files) == 1
    assert None not in files


def skip_unless_own(cluster: Cluster) -> None:
    if not cluster.is_own:
        pytest.skip("only kubelab's nodes are stopped")


def kubelab(*arguments: str) -> None:
    subprocess.run([str(KUBELAB), *arguments], check=True)


def node_of(pods: ClusterHarness, run: Run, role: str) -> str:
    (node,) = nodes_of(pods, run, role)
    return node


def nodes_of(pods: ClusterHarness, run: Run, role: str) -> list[str]:
    return [
        pods.kubectl("get", pod, "-o", "jsonpath={.spec.nodeName}")
        for pod in pods.pods(run.id, role)
    ]


def ended(lost: str, run: Run) -> JobStatus:
    """Wait for the end of a job from which something was taken."""
    lost_at = time.monotonic()
    status = run.job.wait()
    ended_s = time.monotonic() - lost_at
    told = [
        (event["t"], (event["epoch"] - 1) * event["steps"] + event["step"])
        for event in run.record.events()
        if event["type"] == "progress"
    ]
    pairs = list(pairwise(told))
    pause_s = max(later - earlier for (earlier, _), (later, _) in pairs)
    # The last step of an epoch may be told twice.
    again = sum(before + 1 - after for (_, before), (_, after) in pairs if after < before)
    print(
        f"{lost}: ended {ended_s:.1f} s later, {status.restarts} restarts, no step for "
        f"{pause_s:.1f} s, {again} steps twice"
    )
    return status


_undisturbed: list[dict[str, Any]] = []


def undisturbed(pods: ClusterHarness, workspace: Workspace) -> dict[str, Any]:
    """Return the results of a run that loses nothing; trained once for all tests."""
    if not _undisturbed:
        _undisturbed.append(results(pods, paced(pods, workspace, detach=False)))
    return _undisturbed[0]


def paced(
    pods: ClusterHarness,
    workspace: Workspace,
    *,
    detach: bool,
    epochs: int = 12,
    workers: int | str = 2,
    cpus: float | None = None,
) -> Run:
    return train(
        "paced.py",
        args=[str(epochs)],
        workspace=workspace,
        on=pods.engine,
        workers=workers,
        cpus=cpus,
        seed=3,
        checkpoint_steps=2,
        detach=detach,
    )


def wait_for_metrics(run: Run) -> None:
    """Wait for two epochs more."""

    def count() -> int:
        return sum(event["type"] == "metrics" for event in run.record.events())

    before = count()
    while count() < before + 2:
        time.sleep(0.5)
        assert not run.job.status().state.is_final, run.job.status()

"""Training on the fake cluster: the tasks share only a bucket."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.engines.kubernetes.fake_cluster import FakeCluster
from tests.training.conftest import SCRIPTS
from timonel import export, train
from timonel.data import Dataset, convert
from timonel.engines import JobState
from timonel.engines.kubernetes import KubernetesEngine
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import SpecError
from timonel.models.exports import verify_export
from timonel.storage import Workspace
from timonel.storage.object_store import ObjectStore
from timonel.tracking import list_runs
from timonel.training.handles import Run

pytestmark = [pytest.mark.enable_socket, pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture
def dataset(bucket: Workspace, tmp_path: Path) -> Dataset:
    """Images of 8 x 8 pixels in the bucket; the label is the brighter half."""
    random = np.random.default_rng(0)
    for number in range(120):
        label = number % 2
        pixels = random.integers(0, 120, (8, 8), dtype=np.uint8)
        pixels[:, label * 4 : label * 4 + 4] += 100
        split = "train" if number < 96 else "validation" if number < 108 else "test"
        folder = tmp_path / "raw" / split / ("left", "right")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return convert(tmp_path / "raw", f"{bucket.uri}/set", workspace=bucket)


def results(cluster: FakeCluster, run: Run) -> dict[str, dict[str, object]]:
    """Return what the tasks of a run have written, as the latest coordinator has it."""
    pods = cluster.root.glob(f"pods/{run.id}-0-*")
    latest = max(pods, key=lambda pod: (pod / "output").stat().st_ctime)
    files = latest.glob(f"cache/timonel/workspaces/*/jobs/{run.id}/*-?.json")
    return {path.stem: json.loads(path.read_text()) for path in files}


def test_a_run_of_two_workers_comes_back(
    dataset: Dataset, bucket: Workspace, cluster: FakeCluster
) -> None:
    engine = KubernetesEngine.of(bucket)
    seen: list[str] = []
    run = train(
        SCRIPTS / "plain.py",
        data=dataset.uri,
        workspace=bucket,
        on=engine,
        workers=2,
        seed=7,
        progress=lambda event: seen.append(event["type"]),
    )
    found = results(cluster, run)
    assert found["chief-0"]["weights"] == found["worker-0"]["weights"]
    assert run.record.status == "succeeded"
    assert {"metrics", "finish"} <= set(seen)
    version = export(run.id, name="halves", workspace=bucket)
    assert version.number == 1
    assert verify_export(bucket.jobs / run.id / "export").model.parameters > 0


def test_a_job_without_an_image_copies_and_records_nothing(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIMONEL_KUBERNETES_IMAGE")
    with pytest.raises(SpecError, match="image"):
        train(SCRIPTS / "plain.py", workspace=bucket, on=KubernetesEngine.of(bucket))
    assert list_runs(bucket) == []
    _, names = ObjectStore(bucket.uri).children()
    assert names == ["FORMAT"]


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["process", "worker-0", "chief-0", "coordinator"])
def test_what_is_killed_continues_at_its_step(
    bucket: Workspace, cluster: FakeCluster, victim: str
) -> None:
    engine = KubernetesEngine.of(bucket)
    whole = paced(bucket, engine, detach=False)
    run = paced(bucket, engine, detach=True)
    while sum(event["type"] == "metrics" for event in run.record.events()) < 2:
        time.sleep(0.2)
    kill(cluster, run, victim)
    status = run.job.wait()
    assert (status.state, status.restarts) == (JobState.SUCCEEDED, 1)
    assert results(cluster, run) == results(cluster, whole)


@pytest.mark.soak
def test_a_job_that_somebody_deleted_is_resumed(bucket: Workspace, cluster: FakeCluster) -> None:
    engine = KubernetesEngine.of(bucket)
    whole = paced(bucket, engine, detach=False)
    run = paced(bucket, engine, detach=True)
    while sum(event["type"] == "metrics" for event in run.record.events()) < 2:
        time.sleep(0.2)
    kubectl_delete(cluster, run.id)
    assert run.job.status().state is JobState.FAILED
    engine.resume(run.id)
    assert run.job.wait().state is JobState.SUCCEEDED
    assert results(cluster, run) == results(cluster, whole)


def kubectl_delete(cluster: FakeCluster, job: str) -> None:
    Api.connect(ClusterSettings()).delete("Job", job, propagation="Foreground")
    while any(job in name for _, name in cluster.objects):
        time.sleep(0.2)


def paced(bucket: Workspace, engine: KubernetesEngine, *, detach: bool) -> Run:
    return train(
        SCRIPTS / "paced.py",
        args=["8"],
        workspace=bucket,
        on=engine,
        workers=2,
        seed=3,
        checkpoint_steps=2,
        detach=detach,
    )


def kill(cluster: FakeCluster, run: Run, victim: str) -> None:
    if victim == "process":
        pid = next(t.pid for t in run.job.status().tasks if t.task_id == "worker-0")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return
    role, _, index = victim.partition("-")
    job = run.id if victim == "coordinator" else f"{run.id}-{role}"
    (pod,) = (name for name in cluster.processes if name.startswith(f"{job}-{index or 0}-"))
    cluster.processes[pod].popen.kill()


def test_an_error_of_the_script_is_shown(bucket: Workspace, cluster: FakeCluster) -> None:
    from timonel.errors import UserCodeError

    engine = KubernetesEngine.of(bucket)
    with pytest.raises(UserCodeError, match="Traceback"):
        train(SCRIPTS / "broken.py", workspace=bucket, on=engine, workers=2)


def test_functions_and_notebooks_run_in_pods(
    bucket: Workspace, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = KubernetesEngine.of(bucket)

    def doubled(x: int) -> int:
        return 2 * x

    run = train(doubled, params={"x": 21}, workspace=bucket, on=engine, strategy="none")
    assert run.result == 42
    cells = [{"cell_type": "code", "source": "print('from a notebook')"}]
    notebook = tmp_path / "training.ipynb"
    notebook.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": cells}))
    monkeypatch.chdir(tmp_path)
    run = train(notebook, workspace=bucket, on=engine, strategy="none")
    assert "from a notebook" in [line.text for line in run.job.logs()]


def test_a_tfjob_runs_the_script_of_its_image(
    bucket: Workspace, cluster: FakeCluster, tmp_path: Path
) -> None:
    script = tmp_path / "app" / "train.py"
    script.parent.mkdir()
    script.write_text("import os; print('TF_CONFIG is', os.environ['TF_CONFIG'])\n")
    container = {"name": "tensorflow", "image": "x:1", "workingDir": str(script.parent)}
    container["command"] = ["python", "train.py"]
    replica = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "mine"}}
    spec = {"tfReplicaSpecs": {"Worker": replica}, "successPolicy": "AllWorkers"}
    manifest = tmp_path / "tfjob.yaml"
    manifest.write_text(json.dumps({**job, "spec": spec}))
    run = train(manifest=manifest, workspace=bucket, on=KubernetesEngine.of(bucket))
    assert run.record.status == "succeeded"
    (line,) = (
        each.text for each in run.job.logs(task_id="worker-1") if each.text.startswith("TF_CONFIG")
    )
    config = json.loads(line.removeprefix("TF_CONFIG is "))
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(config["cluster"]["worker"]) == 2

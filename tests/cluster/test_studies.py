"""A study on a real cluster: its controller, its trials and its readers share only a bucket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster
from timonel import tune
from timonel.engines.kubernetes import KubernetesEngine
from timonel.storage import Workspace, find_workspace
from timonel.tracking import list_runs
from timonel.tuning import open_study

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    # The registry, the nodes and the bucket are in network namespaces of this machine.
    pytest.mark.enable_socket,
]
SCRIPT = Path(__file__).parents[1] / "tuning" / "scripts" / "measured.py"


@pytest.fixture
def workspace(
    cluster: Cluster,
    job_image: str,
    job_bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Workspace]:
    """A workspace in a bucket, with settings for the cluster; the script is in this folder."""
    monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", job_image)
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(SCRIPT, folder)
    monkeypatch.chdir(folder)
    found = find_workspace(job_bucket)
    yield found
    for status in KubernetesEngine.of(found).jobs():
        cluster.run("delete", "job", status.job_id, "--wait=false")


def test_a_study_of_four_trials(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The latency comes from the file of cloudml-hypertune in the pods.
    tune(
        "measured.py",
        ["x=values(0.1,0.2,0.3,0.9)", "epochs=3", "pause=0.5"],
        "score",
        thresholds=["latency <= 0.5"],
        algorithm="grid",
        trials=4,
        parallel=2,
        study="far",
        strategy="none",
        workspace=workspace,
        on="kubernetes",
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    there = find_workspace(workspace.uri)
    shown = open_study(there, "far")
    trials = shown.trials
    assert {float(trial.params["x"]): trial.status for trial in trials} == {
        0.1: "succeeded",
        0.2: "succeeded",
        0.3: "succeeded",
        0.9: "infeasible",
    }
    assert [len(trial.curve) for trial in trials] == [3] * 4
    assert [trial.params["x"] for trial in shown.best_trials] == [0.3]
    assert trials[1].started_at < (trials[0].ended_at or 0), "two trials ran at the same time"
    runs = {run.id: run.status for run in list_runs(there) if run.parent == "far"}
    assert runs == {str(trial.run_id): "succeeded" for trial in trials}
    assert not shown.is_running

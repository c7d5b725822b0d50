"""Jobs whose bucket refuses requests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contracts.engines import eventually
from tests.engines.kubernetes.fake_cluster import FakeCluster
from tests.storage.faulty import FaultyServer
from timonel.engines import CommandSpec, FailureCause, JobSpec, JobState, RoleSpec
from timonel.engines.kubernetes import KubernetesEngine
from timonel.engines.kubernetes.job_store import read_outcome
from timonel.storage import Workspace, find_workspace
from timonel.tracking import read_run, start_run

pytestmark = [pytest.mark.process, pytest.mark.enable_socket]


class Bucket:
    """A bucket that refuses some requests.

    Attributes:
        workspace: A workspace there.
        server: Its server.
    """

    def __init__(self, uri: str, server: FaultyServer) -> None:
        self.server = server
        self.workspace: Workspace = find_workspace(uri)

    def refuse(self, refuses: Callable[[str, str], bool]) -> None:
        """Refuse the requests whose method and path ``refuses`` says."""
        self.server.fault = lambda method, path, _: "denied" if refuses(method, path) else None


@pytest.fixture
def faulty_bucket(
    faulty: tuple[str, FaultyServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    """A bucket that refuses some requests; to be asked for before a cluster."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Bucket(*faulty)


def submission(workspace: Workspace, *steps: str) -> JobSpec:
    start_run(workspace, "train", run_id="one", job_id="one", engine="kubernetes")
    return JobSpec(
        job_id="one",
        module="tests.contracts.engine_tasks",
        args=steps,
        roles=(RoleSpec(name="worker"),),
        folders=("runs/one",),
        epilogue=CommandSpec(module="timonel.training.finish", args=(workspace.uri, "one")),
    )


def coordinator_of(cluster: FakeCluster) -> str:
    """Return the coordinator's latest pod."""
    return [name for name in cluster.processes if name.startswith("one-0-")][-1]


def let_tasks_end(cluster: FakeCluster) -> None:
    """Create the file for which the tasks wait."""
    pod = cluster.processes[coordinator_of(cluster)].folder
    (folder,) = pod.glob("cache/timonel/workspaces/*/jobs/one")
    (folder / "go").write_text("")


def output_of(cluster: FakeCluster) -> str:
    return (cluster.processes[coordinator_of(cluster)].folder / "output").read_text()


def test_a_job_whose_pods_may_not_write_fails_at_once(
    faulty_bucket: Bucket, cluster: FakeCluster
) -> None:
    engine = KubernetesEngine.of(faulty_bucket.workspace)
    spec = submission(faulty_bucket.workspace, "ready", "exit:0")
    faulty_bucket.refuse(lambda method, path: method == "PUT" and "/jobs/one/writable" in path)
    engine.submit(spec)
    eventually(lambda: engine.status("one").state.is_final)
    status = engine.status("one")
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.ENGINE)
    place = f"{faulty_bucket.workspace.uri}/jobs/one/writable"
    assert status.message is not None
    assert status.message.startswith(
        f"pods cannot use the workspace: cannot write {place}: access denied: "
    )
    assert status.message.endswith(
        "; the credentials of pods need the rights to read and write there"
    )
    eventually(lambda: not cluster.objects)


@pytest.mark.usefixtures("bucket_is_denied_at_the_end")
def test_a_job_succeeds_once_its_results_are_saved(
    faulty_bucket: Bucket, cluster: FakeCluster
) -> None:
    engine = KubernetesEngine.of(faulty_bucket.workspace)
    message = engine.status("one").message or ""
    assert "jobs/one/files.json: access denied" in message
    assert read_outcome(faulty_bucket.workspace, "one") is None
    faulty_bucket.refuse(lambda *_: False)
    eventually(lambda: engine.status("one").state.is_final)
    assert engine.status("one").state is JobState.SUCCEEDED
    assert engine.status("one").message is None


@pytest.mark.usefixtures("bucket_is_denied_at_the_end")
def test_a_successor_continues_a_job_whose_results_are_not_saved(
    faulty_bucket: Bucket, cluster: FakeCluster, tmp_path: Path
) -> None:
    engine = KubernetesEngine.of(faulty_bucket.workspace)
    process = cluster.processes[coordinator_of(cluster)].popen
    process.send_signal(signal.SIGTERM)
    eventually(lambda: process.poll() is not None)
    assert process.returncode == 1
    faulty_bucket.refuse(lambda *_: False)
    eventually(lambda: engine.status("one").state is JobState.RUNNING)
    let_tasks_end(cluster)
    eventually(lambda: engine.status("one").state.is_final)
    status = engine.status("one")
    assert (status.state, status.generation) == (JobState.SUCCEEDED, 2)
    engine.fetch("one", tmp_path / "results", lambda name: name == "result")
    assert (tmp_path / "results" / "result").is_file()


@pytest.fixture
def bucket_is_denied_at_the_end(faulty_bucket: Bucket, cluster: FakeCluster) -> None:
    """A job whose tasks have succeeded, while its files cannot be saved."""
    engine = KubernetesEngine.of(faulty_bucket.workspace)
    engine.submit(submission(faulty_bucket.workspace, "ready", "await:go", "touch:result"))
    eventually(lambda: engine.status("one").state is JobState.RUNNING)
    faulty_bucket.refuse(lambda method, path: method == "PUT" and "/files.json" in path)
    let_tasks_end(cluster)
    eventually(lambda: "waiting to transfer files: " in (engine.status("one").message or ""))
    eventually(lambda: engine.status("one").state is JobState.STOPPING)


def test_a_successor_completes_the_end_of_a_job_without_its_pods(
    faulty_bucket: Bucket, cluster: FakeCluster
) -> None:
    engine = KubernetesEngine.of(faulty_bucket.workspace)
    engine.submit(submission(faulty_bucket.workspace, "ready", "await:go", "exit:0"))
    eventually(lambda: engine.status("one").state is JobState.RUNNING)
    # The epilogue cannot record the end of the run in the bucket.
    faulty_bucket.refuse(
        lambda method, path: (
            method == "PUT"
            and "/files.json" in path
            and read_outcome(faulty_bucket.workspace, "one") is not None
        )
    )
    let_tasks_end(cluster)
    eventually(lambda: read_outcome(faulty_bucket.workspace, "one") is not None)
    eventually(lambda: "access denied" in output_of(cluster))
    eventually(
        lambda: all(
            each.popen.poll() is not None
            for name, each in cluster.processes.items()
            if "worker" in name
        )
    )
    os.kill(cluster.processes[coordinator_of(cluster)].popen.pid, signal.SIGKILL)
    faulty_bucket.refuse(lambda *_: False)
    eventually(lambda: engine.status("one").state.is_final)
    status = engine.status("one")
    assert (status.state, status.generation) == (JobState.SUCCEEDED, 1)
    assert read_run(faulty_bucket.workspace, "one").status == "succeeded"

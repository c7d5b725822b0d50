"""Ends of jobs whose coordinators cannot record them, and interrupted submissions."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.engines import eventually
from tests.engines.kubernetes.fake_cluster import FakeCluster
from timonel.engines import CommandSpec, FailureCause, JobSpec, JobState, JobStatus, RoleSpec
from timonel.engines.kubernetes import KubernetesEngine
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.api_errors import ApiCall
from timonel.engines.kubernetes.job_store import read_spec, read_status
from timonel.engines.kubernetes.names import STOP_ANNOTATION
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.kubernetes.submission import Submission
from timonel.errors import (
    CorruptError,
    EngineError,
    JobError,
    NotFoundError,
    TimonelError,
)
from timonel.storage import Workspace, find_workspace
from timonel.storage.workspace import CLAIM_VARIABLE
from timonel.tracking import list_runs, read_run, start_run
from timonel.training.jobs import find_job, list_jobs
from timonel.training.outcomes import with_outcomes

pytestmark = pytest.mark.enable_socket

_NO_IMAGE = {
    "phase": "Pending",
    "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
}
_NO_NODE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "message": "no free GPU"}],
}
_WRITES = 11
"""Requests of a submission that change the cluster."""


@pytest.fixture
def claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace on a claim that pods mount."""
    # Pods are processes of this user here, also if that is root.
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(CLAIM_VARIABLE, f"team:{tmp_path}/team")
    return find_workspace(tmp_path / "team/ws")


@pytest.fixture
def claim(api: Api) -> None:
    """The claim in the cluster."""
    head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "team"}}
    api.create({**head, "spec": {"accessModes": ["ReadWriteMany"]}})


@pytest.mark.process
@pytest.mark.usefixtures("claim")
def test_a_job_on_a_claim(claimed: Workspace, cluster: FakeCluster) -> None:
    engine = KubernetesEngine.of(claimed)
    engine.submit(submission(claimed).model_copy(update={"args": ("ready",)}))
    eventually(lambda: engine.status("one").state.is_final)
    assert engine.status("one").state is JobState.SUCCEEDED
    assert read_run(claimed, "one").status == "succeeded"


@pytest.mark.process
def test_jobs_of_another_workspace_in_the_namespace_are_not_touched(
    bucket: Workspace, cluster: FakeCluster
) -> None:
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket).model_copy(update={"args": ("ready", "wait")}))
    eventually(lambda: engine.status("one").state is JobState.RUNNING)
    workspace = find_workspace(f"{bucket.uri}/other")
    other = KubernetesEngine.of(workspace)
    assert other.jobs() == []
    assert list_jobs(workspace) == []
    for act in (other.status, other.cancel, other.resume):
        with pytest.raises(NotFoundError, match="no such job: one"):
            act("one")
    with pytest.raises(NotFoundError, match="this workspace has no jobs"):
        find_job(workspace, "last")
    assert engine.status("one").state is JobState.RUNNING
    engine.cancel("one")
    eventually(lambda: engine.status("one").state.is_final)


@pytest.mark.process
@pytest.mark.usefixtures("claim")
def test_pods_that_see_other_storage_fail_the_job(claimed: Workspace, cluster: FakeCluster) -> None:
    # Pods look at the location in the manifest, the submitter at the store.
    engine = KubernetesEngine.of(replace(claimed, uri=claimed.uri.replace("/ws", "/other")))
    engine.submit(submission(claimed))
    eventually(lambda: engine.status("one").state.is_final)
    status = engine.status("one")
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.ENGINE)
    assert status.message == (
        f"pods cannot use the workspace: no workspace at {claimed.uri.replace('/ws', '/other')}; "
        "the claim must be the storage that the submitting machine has there"
    )
    eventually(lambda: set(cluster.objects) == {("persistentvolumeclaims", "team")})


def submission(workspace: Workspace, job_id: str = "one") -> JobSpec:
    """Start a run as `timonel train` does, and return its job."""
    start_run(workspace, "train", run_id=job_id, job_id=job_id, engine="kubernetes")
    return JobSpec(
        job_id=job_id,
        module="tests.contracts.engine_tasks",
        roles=(RoleSpec(name="worker", replicas=2),),
        folders=(f"runs/{job_id}",),
        epilogue=CommandSpec(module="timonel.training.finish", args=(workspace.uri, job_id)),
    )


def elsewhere(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workspace:
    """Return the workspace as another machine sees it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other-cache"))
    return find_workspace(workspace.uri, create=False)


def leftovers(cluster: FakeCluster) -> list[tuple[str, str]]:
    return sorted(cluster.objects)


def is_idle(cluster: FakeCluster) -> bool:
    return not any(process.popen.poll() is None for process in cluster.processes.values())


@pytest.mark.process
@pytest.mark.parametrize("cause", ["image", "node", "quota"])
def test_cancelling_a_job_that_cannot_start_ends_it_at_once(
    bucket: Workspace,
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cause: str,
) -> None:
    cluster.is_full = cause == "quota"
    cluster.stuck = {"image": _NO_IMAGE, "node": _NO_NODE}.get(cause)
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket))
    if not cluster.is_full:
        eventually(lambda: engine.status("one").message is not None)
    engine.cancel("one")
    assert leftovers(cluster) == []

    other = elsewhere(bucket, monkeypatch, tmp_path)
    assert KubernetesEngine.of(other).status("one").state is JobState.STOPPED
    (run,) = list_runs(other)
    assert (run.status, run.message) == ("stopped", "cancelled before it started")
    job = find_job(other, "one")
    job.stop()  # has no effect
    assert [(each.state, each.machine) for each in list_jobs(other)] == [(job.status().state, None)]


@pytest.mark.process
def test_a_job_whose_coordinator_crashes_at_start_shows_the_last_line_of_its_output(
    bucket: Workspace, cluster: FakeCluster, tmp_path: Path
) -> None:
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    problem = "raise ModuleNotFoundError(\"No module named 'pydantic'\")\n"
    (lacking / "pydantic.py").write_text(problem)
    path = f"{lacking}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    cluster.env = {**cluster.env, "PYTHONPATH": path}
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket))
    eventually(lambda: engine.status("one").message is not None)
    message = engine.status("one").message
    assert message is not None
    assert message.startswith(
        "the coordinator exited with code 1: ModuleNotFoundError: No module named 'pydantic'; "
        "'kubectl logs one-0-"
    )
    engine.cancel("one")


@pytest.mark.process
def test_a_cancelled_job_ends_as_soon_as_it_is_clear_that_it_cannot_start(
    bucket: Workspace, cluster: FakeCluster
) -> None:
    cluster.stuck = {"phase": "Pending"}
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket))
    eventually(lambda: any(plural == "pods" for plural, _ in cluster.objects))
    engine.cancel("one")
    assert engine.status("one").state is JobState.PENDING
    cluster.stuck |= _NO_IMAGE
    assert [status.state for status in engine.jobs()] == [JobState.STOPPED]
    assert leftovers(cluster) == []
    assert read_run(bucket, "one").status == "stopped"


@pytest.mark.process
def test_a_cancelled_job_can_be_resumed(bucket: Workspace, cluster: FakeCluster) -> None:
    cluster.is_full = True
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket))
    engine.cancel("one")
    engine.resume("one")
    assert engine.status("one").state is JobState.PENDING
    engine.cancel("one")
    assert engine.status("one").state is JobState.STOPPED
    assert leftovers(cluster) == []


@pytest.mark.process
def test_the_end_of_a_job_whose_coordinator_failed_for_good_is_recorded(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket).model_copy(update={"args": ("ready", "wait")}))
    eventually(lambda: engine.status("one").state is not JobState.PENDING)
    cluster.fail_job("one", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    eventually(lambda: not any(name.startswith("one-0-") for _, name in cluster.objects))

    other = elsewhere(bucket, monkeypatch, tmp_path)
    (run,) = with_outcomes(other, list_runs(other))
    status = KubernetesEngine.of(other).status("one")
    assert status.state is JobState.FAILED
    assert (run.status, run.message, run.cause) == ("failed", status.message, "engine")
    assert run.message is not None
    assert run.message.endswith("BackoffLimitExceeded: Job has reached the specified backoff limit")
    eventually(lambda: leftovers(cluster) == [] and is_idle(cluster))


@pytest.mark.process
def test_a_status_that_only_the_bucket_has_is_not_replaced(
    bucket: Workspace, cluster: FakeCluster
) -> None:
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket).model_copy(update={"args": ("exit:0",)}))
    eventually(lambda: engine.status("one").state.is_final)
    ended = engine.status("one")
    eventually(lambda: is_idle(cluster))
    # As if the API server had been away when the coordinator ended.
    data = cluster.objects["configmaps", "one"]["data"]
    data["status"] = ended.model_copy(update={"state": JobState.STOPPING}).model_dump_json()
    cluster.fail_job("one", "Complete", "")
    assert engine.status("one") == ended


class InterruptedApi(Api):
    """A client that fails before or after one of its writes.

    Attributes:
        left: Number of writes until then.
        fail: Called then.
        is_late: Whether the cluster gets the request.
    """

    left = 0
    is_late = False
    fail: Callable[[], None] | None = None

    def _exchange(
        self, call: ApiCall, query: Mapping[str, str] | None, body: Any, content_type: str
    ) -> tuple[int, bytes]:
        is_here = False
        if call.verb in {"create", "patch"} and self.fail is not None:
            is_here, self.left = self.left == 0, self.left - 1
        if is_here and not self.is_late:
            self._fail()
        answer = super()._exchange(call, query, body, content_type)
        if is_here and self.is_late:
            self._fail()
        return answer

    def _fail(self) -> None:
        assert self.fail is not None
        self.fail()


def interrupted_engine(
    bucket: Workspace, at: int, fail: Callable[[], None], *, is_late: bool = False
) -> KubernetesEngine:
    settings = ClusterSettings(image="team/train:1")
    api = InterruptedApi.connect(settings)
    api.left, api.fail, api.is_late = at, fail, is_late
    return KubernetesEngine(bucket, api, settings)


def interrupt() -> None:
    raise KeyboardInterrupt


def lose_connection() -> None:
    raise ConnectionResetError("reset by peer")


@pytest.mark.process
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("fail", "error"), [(interrupt, KeyboardInterrupt), (lose_connection, EngineError)]
)
def test_an_interrupted_submission_leaves_nothing(
    bucket: Workspace,
    cluster: FakeCluster,
    fail: Callable[[], None],
    error: type[BaseException],
    is_late: bool,
) -> None:
    spec = submission(bucket)
    for write in range(_WRITES):
        engine = interrupted_engine(bucket, write, fail, is_late=is_late)
        with pytest.raises(error):
            engine.submit(spec)
        eventually(lambda: leftovers(cluster) == [])
        with pytest.raises(NotFoundError):
            engine.status("one")
    interrupted_engine(bucket, _WRITES, fail).submit(spec)


def test_the_job_of_another_submission_is_not_deleted(
    bucket: Workspace, cluster: FakeCluster
) -> None:
    cluster.is_full = True
    KubernetesEngine.of(bucket).submit(submission(bucket))
    other = find_workspace(f"{bucket.uri}/other")
    spec = submission(other)
    with pytest.raises(EngineError):  # the answer "exists already" is lost
        interrupted_engine(other, 0, lose_connection, is_late=True).submit(spec)
    with pytest.raises(TimonelError, match="exists already"):
        KubernetesEngine.of(other).submit(spec)
    assert ("jobs", "one") in cluster.objects


@pytest.mark.process
@pytest.mark.parametrize("write", [1, 3, _WRITES - 2])
def test_a_killed_submission_is_removed_by_a_later_command(
    bucket: Workspace,
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    write: int,
) -> None:
    spec = submission(bucket)
    submitter = os.fork()
    if submitter == 0:
        interrupted_engine(bucket, write, lambda: os.kill(os.getpid(), signal.SIGKILL)).submit(spec)
    os.waitpid(submitter, 0)
    assert ("jobs", "one") in cluster.objects
    time.sleep(0.2)
    assert not any(plural == "pods" for plural, _ in cluster.objects)

    other = elsewhere(bucket, monkeypatch, tmp_path)
    engine = KubernetesEngine.of(other)
    assert [each.state for each in engine.jobs() if each.state.is_final] == []  # not yet
    cluster.age("jobs", "one", 4000)
    assert [each.state for each in engine.jobs()] == [JobState.FAILED]
    assert leftovers(cluster) == []
    assert engine.jobs() == []
    if write > 1:
        (run,) = list_runs(other)
        assert (run.status, run.message) == ("failed", "its submission was interrupted")


def test_a_run_without_a_job_is_completed_when_it_is_old(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission(bucket)
    (run,) = with_outcomes(bucket, list_runs(bucket))
    assert run.status == "running"
    now = time.time()
    monkeypatch.setattr("timonel.training.outcomes.time.time", lambda: now + 4000)
    (run,) = with_outcomes(bucket, list_runs(bucket))
    assert (run.status, run.message) == ("failed", "its submission was interrupted")


@pytest.mark.process
def test_a_job_that_was_deleted_in_the_cluster_has_failed_and_can_be_resumed(
    bucket: Workspace, cluster: FakeCluster
) -> None:
    cluster.is_full = True
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket))
    cluster.objects.clear()
    (run,) = with_outcomes(bucket, list_runs(bucket))
    assert (run.status, run.message) == ("failed", "its objects were deleted in the cluster")
    assert engine.status("one").state is JobState.FAILED
    engine.resume("one")
    assert engine.status("one").state is JobState.PENDING


@pytest.mark.process
def test_the_list_shows_that_a_job_was_deleted_in_the_cluster(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.is_full = True
    KubernetesEngine.of(bucket).submit(submission(bucket))
    cluster.objects.clear()
    workspace = find_workspace(bucket.uri, create=False, offline=True)
    (listed,) = list_jobs(workspace)
    assert (listed.state, listed.message) == (
        JobState.FAILED,
        "its objects were deleted in the cluster",
    )

    def fail(*_: object) -> JobStatus:
        raise AssertionError("asked for a job that has ended")

    monkeypatch.setattr(KubernetesEngine, "status", fail)
    (again,) = list_jobs(workspace)
    assert again == listed


@pytest.mark.process
def test_a_job_that_was_deleted_twice_goes_on_from_its_last_generation(
    bucket: Workspace, cluster: FakeCluster
) -> None:
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket).model_copy(update={"args": ("ready", "wait")}))
    begun = _deleted_while_it_runs(engine, cluster)
    first = engine.status("one")
    assert first.message == "its objects were deleted in the cluster"
    assert (first.generation, first.started_at) == (begun.generation, begun.started_at)
    assert first.created_at == begun.created_at

    engine.resume("one")
    assert _deleted_while_it_runs(engine, cluster).generation == begun.generation + 1
    second = engine.status("one")
    assert second.generation == begun.generation + 1
    assert second.ended_at is not None
    assert first.ended_at is not None
    assert second.ended_at > first.ended_at
    assert second.created_at == begun.created_at

    engine.resume("one")
    assert _deleted_while_it_runs(engine, cluster).generation == begun.generation + 2


def _deleted_while_it_runs(engine: KubernetesEngine, cluster: FakeCluster) -> JobStatus:
    """Delete the job as kubectl does when it runs; return its status then."""
    eventually(lambda: engine.status("one").state is JobState.RUNNING)
    found = engine.status("one")
    eventually(lambda: _recorded(engine) == (found.generation, found.started_at))
    engine._api.delete("Job", "one", propagation="Foreground")
    eventually(lambda: cluster.objects == {} and is_idle(cluster))
    return found


def _recorded(engine: KubernetesEngine) -> tuple[int, float | None]:
    status = read_status(engine._workspace, "one")
    assert status is not None
    return status.generation, status.started_at


@pytest.mark.process
@pytest.mark.parametrize("write", [_WRITES - 4, _WRITES - 2, _WRITES - 1])
def test_an_interrupted_resume_leaves_the_job_as_it_ended(
    bucket: Workspace, cluster: FakeCluster, write: int
) -> None:
    cluster.is_full = True
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket))
    engine.cancel("one")
    before = engine.status("one")
    with pytest.raises(KeyboardInterrupt):
        interrupted_engine(bucket, write, interrupt, is_late=True).resume("one")
    eventually(lambda: leftovers(cluster) == [])
    assert engine.status("one") == before


@pytest.mark.process
def test_a_job_without_its_config_map_runs_on_and_can_be_stopped(
    bucket: Workspace, cluster: FakeCluster
) -> None:
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket).model_copy(update={"args": ("ready", "wait")}))
    eventually(lambda: engine.status("one").state is JobState.RUNNING)
    begun = engine.status("one")
    eventually(lambda: _recorded(engine) == (begun.generation, begun.started_at))

    del cluster.objects["configmaps", "one"]
    assert [each.generation for each in engine.jobs()] == [begun.generation]
    assert engine.status("one").state is JobState.RUNNING
    assert cluster.objects["configmaps", "one"]["metadata"]["ownerReferences"]

    del cluster.objects["configmaps", "one"]
    (pod,) = [name for _, name in cluster.objects if name.startswith("one-0-")]
    cluster.processes[pod].popen.kill()  # the next coordinator finds none
    eventually(lambda: engine.status("one").generation == begun.generation + 1)
    eventually(lambda: engine.status("one").state is JobState.RUNNING)

    del cluster.objects["configmaps", "one"]
    engine.cancel("one")
    eventually(lambda: engine.status("one").state.is_final)
    assert engine.status("one").state is JobState.STOPPED


@pytest.mark.process
def test_the_end_of_a_job_without_its_config_map_is_known(
    bucket: Workspace, cluster: FakeCluster
) -> None:
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket).model_copy(update={"args": ("ready", "wait")}))
    eventually(lambda: engine.status("one").state is JobState.RUNNING)
    del cluster.objects["configmaps", "one"]
    note = {"metadata": {"annotations": {STOP_ANNOTATION: "by kubectl"}}}
    engine._api.patch("Job", "one", note)
    eventually(lambda: is_idle(cluster))
    assert ("configmaps", "one") not in cluster.objects
    assert [each.state for each in engine.jobs()] == [JobState.STOPPED]
    engine.resume("one")
    eventually(lambda: engine.status("one").state is JobState.RUNNING)


@pytest.mark.process
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_job_whose_job_was_deleted_without_its_objects_can_be_resumed(
    bucket: Workspace, cluster: FakeCluster, is_cancelled: bool
) -> None:
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket).model_copy(update={"args": ("ready", "wait")}))
    eventually(lambda: engine.status("one").state is JobState.RUNNING)
    begun = engine.status("one")
    cluster.orphan("one")
    assert engine.status("one") == begun  # its coordinator works
    if is_cancelled:
        engine.cancel("one")
        assert engine.status("one").state is JobState.STOPPED
    else:
        (pod,) = [name for _, name in cluster.objects if name.startswith("one-0-")]
        engine._api.delete("Pod", pod)
        eventually(lambda: engine.status("one").state.is_final)
        status = engine.status("one")
        assert status.message == "its objects were deleted in the cluster"
        assert (status.generation, status.created_at) == (begun.generation, begun.created_at)
    eventually(lambda: is_idle(cluster))
    kept = {"leases", "rolebindings", "roles", "serviceaccounts"}
    eventually(lambda: {kind for kind, _ in cluster.objects} == kept)

    engine.resume("one")
    eventually(lambda: engine.status("one").state is JobState.RUNNING)
    engine._api.delete("Job", "one", propagation="Foreground")
    eventually(lambda: leftovers(cluster) == [("serviceaccounts", "one")])


def test_a_job_that_runs_cannot_be_resumed(bucket: Workspace, cluster: FakeCluster) -> None:
    cluster.is_full = True
    engine = KubernetesEngine.of(bucket)
    engine.submit(submission(bucket))
    with pytest.raises(JobError, match="only a failed or stopped job"):
        engine.resume("one")


def test_a_submission_that_was_killed_before_its_status_is_no_job(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = interrupted_engine(bucket, 1, interrupt)
    monkeypatch.setattr(Submission, "_withdraw", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        engine.submit(submission(bucket))
    assert ("jobs", "one") in cluster.objects
    with pytest.raises(NotFoundError, match="the submission of one has not completed"):
        KubernetesEngine.of(bucket).status("one")


@pytest.mark.process
@pytest.mark.parametrize("is_kept", [False, True])
def test_of_two_resumes_one_starts(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    engine, other = KubernetesEngine.of(bucket), KubernetesEngine.of(bucket)
    if is_kept:  # the cluster still has the Job that ended
        engine.submit(submission(bucket).model_copy(update={"args": ("exit:1",)}))
        eventually(lambda: engine.status("one").state.is_final and is_idle(cluster))
        assert ("jobs", "one") in cluster.objects
    cluster.is_full = True
    if not is_kept:
        engine.submit(submission(bucket))
        engine.cancel("one")
    current = other._current

    def late(job_id: str) -> Any:
        found = current(job_id)
        engine.resume(job_id)
        return found

    monkeypatch.setattr(other, "_current", late)
    with pytest.raises(JobError, match="one was resumed by someone else meanwhile"):
        other.resume("one")
    assert engine.status("one").state is JobState.PENDING
    assert ("configmaps", "one") in cluster.objects


@pytest.mark.parametrize("content", ["{", '{"state": "unknown"}'])
def test_a_job_whose_status_is_damaged_does_not_hide_the_others(
    bucket: Workspace, cluster: FakeCluster, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    cluster.is_full = True
    engine = KubernetesEngine.of(bucket)
    for job_id in ("one", "two"):
        engine.submit(submission(bucket, job_id))
    cluster.objects["configmaps", "one"]["data"] = {"status": content}
    assert [each.job_id for each in engine.jobs()] == ["two"]
    assert "the status of the job one cannot be read" in caplog.text
    with pytest.raises(CorruptError, match=r"the ConfigMap one is damaged.*kubectl delete job one"):
        engine.status("one")


@pytest.mark.parametrize("error", [EngineError("away"), OSError("away")])
def test_a_failing_cleanup_does_not_hide_the_first_error(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    cluster.is_full = True
    engine = interrupted_engine(bucket, 2, interrupt)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(engine._api, "delete", fail)
    with pytest.raises(KeyboardInterrupt):
        engine.submit(submission(bucket))
    with pytest.raises(NotFoundError):
        read_spec(bucket, "one")


def test_a_refused_submission_withdraws_nothing(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid() -> None:
        raise EngineError("you are not allowed to create jobs in namespace 'team'")

    # It would ask for what the user may not see, and log another error.
    monkeypatch.setattr(Submission, "_withdraw", lambda *_: pytest.fail("it created nothing"))
    with pytest.raises(EngineError, match="not allowed to create jobs"):
        interrupted_engine(bucket, 0, forbid).submit(submission(bucket))
    assert leftovers(cluster) == []

"""Status of jobs from their objects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.kubernetes.specs import spec
from timonel.engines import FailureCause, JobState, JobStatus
from timonel.engines.kubernetes.job_status import job_status

_CREATED = 1_700_000_000.0
_NO_IMAGE: dict[str, Any] = {
    "metadata": {"name": "one-0"},
    "spec": {"containers": [{"image": "team/train:1"}]},
    "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
}
_RUNNING: dict[str, Any] = {
    "metadata": {"name": "one-0"},
    "spec": {"containers": [{}]},
    "status": {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]},
}


def job(*conditions: dict[str, str], **annotations: str) -> dict[str, Any]:
    notes = {f"timonel.dev/{name}": value for name, value in annotations.items()}
    created = "2023-11-14T22:13:20Z"
    metadata = {"name": "one", "creationTimestamp": created, "annotations": notes}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": list(conditions)}}


def published(state: JobState = JobState.PENDING, **fields: Any) -> JobStatus:
    return JobStatus.of(spec(job_id="one"), _CREATED).model_copy(update={"state": state, **fields})


def test_what_the_coordinator_published_counts() -> None:
    for state in (JobState.RUNNING, JobState.SUCCEEDED, JobState.STOPPED):
        found = published(state)
        assert job_status(job(stop="by the user"), found, [], _CREATED + 99) == found
    ended = published(JobState.SUCCEEDED)
    failed = {"type": "Failed", "status": "True"}
    assert job_status(job(failed), ended, [], _CREATED) == ended


def test_a_coordinator_that_cannot_use_the_workspace_fails_the_job() -> None:
    refused = published(cause=FailureCause.ENGINE, message="no workspace")
    assert job_status(job(), refused, [_RUNNING], _CREATED) == refused
    status = job_status(job({"type": "Complete", "status": "True"}), refused, [], _CREATED)
    assert status is not None
    assert (status.state, status.message) == (JobState.FAILED, "no workspace")


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING])
def test_a_coordinator_that_failed_for_good_fails_the_job(state: JobState) -> None:
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "DeadlineExceeded",
        "message": "Job was active longer than specified deadline",
    }
    status = job_status(job(failed), published(state), [], _CREATED + 9)
    assert status is not None
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.ENGINE)
    assert status.ended_at == _CREATED + 9
    assert status.message == (
        "its coordinator ended without reporting the outcome: DeadlineExceeded: Job was active "
        "longer than specified deadline"
    )
    assert {task.state for task in status.tasks} == {"stopped"}
    starting = {"type": "FailureTarget", "status": "True"}
    assert job_status(job(starting), published(state), [_RUNNING], _CREATED) == published(state)


def test_a_pending_job_says_why_and_a_cancelled_one_has_ended() -> None:
    waiting = job_status(job(), published(), [_NO_IMAGE], _CREATED)
    assert waiting is not None
    assert waiting.state is JobState.PENDING
    assert waiting.message is not None
    assert "the coordinator cannot pull the image team/train:1" in waiting.message
    for pods in ([_NO_IMAGE], []):
        status = job_status(job(stop="by the user"), published(), pods, _CREATED + 9)
        assert status is not None
        assert (status.state, status.cause) == (JobState.STOPPED, FailureCause.STOPPED)
        assert status.message == "cancelled before it started"


def test_a_pending_job_says_that_its_coordinator_starts() -> None:
    container = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    status = {"startTime": "2023-11-14T22:13:20Z", "containerStatuses": [container]}
    pod = {**_NO_IMAGE, "status": status}
    found = job_status(job(), published(), [pod], _CREATED + 10)
    assert found is not None
    assert found.message == "the coordinator is pulling its image or mounting its volumes"
    assert job_status(job(stop="by the user"), published(), [pod], _CREATED + 10) == found


@pytest.mark.parametrize("state", ["running", "waiting", "terminated"])
def test_a_pending_job_says_why_its_coordinator_crashes(state: str) -> None:
    ended = {"exitCode": 1, "message": "Traceback ...\nModuleNotFoundError: No module named 'x'\n"}
    container = {
        "state": {
            "running": {"running": {}},
            "waiting": {"waiting": {"reason": "CrashLoopBackOff"}},
            "terminated": {"terminated": ended},
        }[state],
        "lastState": {"terminated": ended},
        "restartCount": 2,
    }
    status = {"phase": "Running", "containerStatuses": [container]}
    found = job_status(job(), published(), [{**_RUNNING, "status": status}], _CREATED)
    assert found is not None
    assert found.state is JobState.PENDING
    assert found.message == (
        "the coordinator exits again and again with code 1: ModuleNotFoundError: No module named "
        "'x'; 'kubectl logs one-0 --previous' has its output"
    )


def test_a_coordinator_that_starts_or_runs_ends_a_cancelled_job_itself() -> None:
    for pod in (_RUNNING, {**_RUNNING, "status": {"phase": "Pending"}}):
        assert job_status(job(stop="by the user"), published(), [pod], _CREATED) == published()


def test_a_cancelled_job_that_has_run_waits_for_another_coordinator_for_a_minute() -> None:
    created = {"creationTimestamp": "2023-11-14T22:13:20Z"}
    pod = {**_NO_IMAGE, "metadata": {"name": "one-0", **created}}
    running = published(JobState.RUNNING)
    assert job_status(job(stop="by the user"), running, [], _CREATED + 99) == running
    assert job_status(job(stop="by the user"), running, [pod], _CREATED + 30) == running
    assert job_status(job(), running, [pod], _CREATED + 99) == running
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    leaving = {**pod, "status": {**_RUNNING["status"], "conditions": [disrupted]}}
    assert job_status(job(stop="by the user"), running, [leaving], _CREATED + 99) == running
    status = job_status(job(stop="by the user"), running, [pod], _CREATED + 99)
    assert status is not None
    assert (status.state, status.message) == (JobState.STOPPED, "cancelled without a coordinator")


def test_a_job_without_pods_says_where_to_look() -> None:
    assert job_status(job(), published(), [], _CREATED + 5) == published()
    status = job_status(job(), published(), [], _CREATED + 100)
    assert status is not None
    assert status.message == (
        "the cluster starts no coordinator: 'kubectl describe job one' says why"
    )


@pytest.mark.parametrize("found", [None, published()])
def test_a_submission_that_never_completed_failed(found: JobStatus | None) -> None:
    assert job_status(job(submission="1f"), found, [], _CREATED + 3000) == found
    status = job_status(job(submission="1f"), found, [], _CREATED + 4000)
    assert status is not None
    assert (status.job_id, status.state) == ("one", JobState.FAILED)
    assert status.message == "its submission was interrupted"

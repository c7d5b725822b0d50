"""Status of jobs: as published, or else what their objects say. Pure functions of objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from timonel.engines.base import FailureCause, JobState, JobStatus
from timonel.engines.kubernetes import pods
from timonel.engines.kubernetes.names import STOP_ANNOTATION, SUBMISSION_ANNOTATION

ABANDONED_S = 3600.0
"""Age at which a submission that is not complete counts as interrupted; none of its pods run."""
_NO_POD_S = 60.0

Object = Mapping[str, Any]


def job_status(
    job: Object, published: JobStatus | None, coordinators: Sequence[Object], now: float
) -> JobStatus | None:
    """Return the status of a job; None while it is being submitted.

    It is final, although the published one is not, if no coordinator will publish the end: the
    coordinator failed for good, never started and the user cancelled the job, or the submission
    was interrupted.

    Args:
        job: Job of the coordinator, read before the published status.
        published: Status that the submitter or the coordinator published last, if any.
        coordinators: Pods of the coordinator; needed only while the job is pending.
        now: Time in seconds since the epoch.
    """
    if published is not None and published.state.is_final:
        return published
    known = published or JobStatus(job_id=job["metadata"]["name"], created_at=_created(job))
    if reason := _end(job):
        return _failed(known, f"its coordinator ended without reporting the outcome: {reason}", now)
    if _is_incomplete(job) and now - _created(job) > ABANDONED_S:
        return _failed(known, "its submission was interrupted", now)
    if published is not None and published.state is JobState.PENDING:
        return _pending(job, published, coordinators, now)
    return published


def _pending(
    job: Object, published: JobStatus, coordinators: Sequence[Object], now: float
) -> JobStatus:
    reasons = [pods.why(pod, now) for pod in coordinators]
    if STOP_ANNOTATION in _annotations(job) and all(reasons):
        how = (JobState.STOPPED, FailureCause.STOPPED, "cancelled before it started")
        return _ended(published, *how, now)
    message = next((f"its coordinator {why}" for why in reasons if why), None)
    if not reasons and not _is_incomplete(job) and now - _created(job) > _NO_POD_S:
        name = published.job_id
        message = f"the cluster starts no coordinator: 'kubectl describe job {name}' says why"
    return published.model_copy(update={"message": message}) if message else published


def _is_incomplete(job: Object) -> bool:
    """Decide whether the submission of a job has not completed."""
    return bool(_annotations(job).get(SUBMISSION_ANNOTATION))


def _annotations(job: Object) -> Mapping[str, str]:
    return job["metadata"].get("annotations") or {}


def _end(job: Object) -> str | None:
    """Return why the cluster starts no further coordinator; None if it does."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in {"Failed", "Complete"}:
            parts = (condition.get("reason"), " ".join((condition.get("message") or "").split()))
            return ": ".join(filter(None, parts)) or "its Job is complete"
    return None


def _failed(known: JobStatus, message: str, now: float) -> JobStatus:
    return _ended(known, JobState.FAILED, FailureCause.ENGINE, message, now)


def _ended(
    known: JobStatus, state: JobState, cause: FailureCause, message: str, now: float
) -> JobStatus:
    tasks = tuple(
        task
        if task.state in {"succeeded", "failed", "stopped"}
        else task.model_copy(update={"state": "stopped"})
        for task in known.tasks
    )
    update = {"state": state, "cause": cause, "message": message, "ended_at": now, "tasks": tasks}
    return known.model_copy(update=update)


def _created(job: Object) -> float:
    return pods.timestamp(job["metadata"]["creationTimestamp"])

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
_RESTART_S = 60.0

Object = Mapping[str, Any]


def job_status(
    job: Object, published: JobStatus | None, coordinators: Sequence[Object], now: float
) -> JobStatus | None:
    """Return the status of a job; None while it is being submitted.

    It is final, although the published one is not, if no coordinator will publish the end: the
    coordinator failed for good, the user cancelled the job and its coordinator cannot start, or the
    submission was interrupted.

    Args:
        job: Job of the coordinator, read before the published status.
        published: Status that the submitter or the coordinator published last, if any.
        coordinators: Pods of the coordinator; needed only if `needs_coordinators`.
        now: Time in seconds since the epoch.
    """
    if published is not None and published.state.is_final:
        return published
    known = published or JobStatus(job_id=job["metadata"]["name"], created_at=pods.created(job))
    if message := _failure(job, published, now):
        return _ended(known, JobState.FAILED, FailureCause.ENGINE, message, now)
    if published is None:
        return None
    if _is_cancelled(job) and _cannot_start(published, coordinators, now):
        is_pending = published.state is JobState.PENDING
        message = "cancelled before it started" if is_pending else "cancelled without a coordinator"
        return _ended(published, JobState.STOPPED, FailureCause.STOPPED, message, now)
    if published.state is JobState.PENDING and (why := _delay(job, coordinators, now)):
        return published.model_copy(update={"message": why})
    return published


def deleted(known: JobStatus, now: float) -> JobStatus:
    """Return the status of a job whose objects somebody deleted before it ended.

    Args:
        known: Its last known status.
        now: Time in seconds since the epoch.
    """
    message = "its objects were deleted in the cluster"
    return _ended(known, JobState.FAILED, FailureCause.ENGINE, message, now)


def stopped(known: JobStatus, now: float) -> JobStatus:
    """Return the status of a job that the user cancelled after somebody deleted its Job.

    Args:
        known: Its last known status.
        now: Time in seconds since the epoch.
    """
    message = "cancelled after its Job was deleted"
    return _ended(known, JobState.STOPPED, FailureCause.STOPPED, message, now)


def _failure(job: Object, published: JobStatus | None, now: float) -> str | None:
    """Explain why no coordinator will ever report an outcome; None if one may."""
    if reason := _end(job):
        if published is not None and published.state is JobState.PENDING and published.cause:
            return published.message  # of a coordinator that cannot use the workspace
        return f"its coordinator ended without reporting the outcome: {reason}"
    if is_incomplete(job) and now - pods.created(job) > ABANDONED_S:
        return "its submission was interrupted"
    return None


def needs_coordinators(job: Object, published: JobStatus | None) -> bool:
    """Decide whether the status of a job depends on the pods of its coordinator."""
    is_pending = published is not None and published.state is JobState.PENDING
    return is_pending or _is_cancelled(job)


def is_running_orphan(pod: Object) -> bool:
    """Decide whether a pod runs although its Job was deleted."""
    is_active = (pod.get("status") or {}).get("phase") in {"Pending", "Running"}
    kept = not pod["metadata"].get("ownerReferences")
    return is_active and kept and "deletionTimestamp" not in pod["metadata"]


def _cannot_start(published: JobStatus, coordinators: Sequence[Object], now: float) -> bool:
    """Decide whether no coordinator will carry out a request to stop.

    After a first coordinator has run, the next one gets time to start: it collects files of pods.
    """
    if published.state is JobState.PENDING:
        return all(pods.why(pod, now) for pod in coordinators)
    return bool(coordinators) and all(
        pods.why(pod, now) and not pods.is_running(pod) and now - pods.created(pod) > _RESTART_S
        for pod in coordinators
    )


def _delay(job: Object, coordinators: Sequence[Object], now: float) -> str | None:
    """Explain why the coordinator does not start yet."""
    for pod in coordinators:
        if why := pods.why(pod, now) or pods.starting(pod, now) or pods.why_restarted(pod):
            return f"the coordinator {why}"
    if coordinators or is_incomplete(job) or now - pods.created(job) < _NO_POD_S:
        return None
    name = job["metadata"]["name"]
    return f"the cluster starts no coordinator: 'kubectl describe job {name}' says why"


def _is_cancelled(job: Object) -> bool:
    return STOP_ANNOTATION in _annotations(job)


def is_incomplete(job: Object) -> bool:
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

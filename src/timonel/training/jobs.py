"""Jobs of a workspace, each on the engine that its run has recorded.

Jobs of this machine are found without the workspace's bucket. Of jobs of other machines, only the
runs are known.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator

from timonel.engines import (
    DEFAULT_ENGINE,
    Engine,
    FailureCause,
    JobSpec,
    JobState,
    JobStatus,
    engine_names,
    get_engine,
)
from timonel.errors import EngineError, JobError, NotFoundError, SpecError
from timonel.storage import Workspace, find_workspace, read_document, write_document
from timonel.storage.object_store import ObjectStore
from timonel.tracking import RunRecord, list_runs, open_run, read_run
from timonel.tracking.events import RESUME
from timonel.tracking.reading import list_headers
from timonel.training.handles import Job
from timonel.training.outcomes import with_outcomes
from timonel.training.upload import LONGEST_S, alive_name

_FILE_NAME = "job.json"
_SILENT_S = 3 * LONGEST_S
"""Time without a sign of life after which a job of another machine counts as ended."""
_LOOK_S = 1.0
_logger = logging.getLogger(__name__)


class RemoteJobError(JobError):
    """Another machine runs the job."""


def list_jobs(workspace: Workspace) -> list[JobStatus]:
    """Return the status of all jobs of a workspace, newest first."""
    # Jobs of other machines, and those that clusters deleted, have the status of their runs.
    found = [status for engine in _engines(workspace) for status in engine.jobs()]
    return sorted([*found, *_others(workspace, found)], key=lambda status: -status.created_at)


def find_job(workspace: Workspace, ref: str) -> Job:
    """Return a job by its ID, a prefix of it, the name of its run, or ``last``."""
    # Reads the bucket of a workspace only if no job of this machine matches.
    engines = list(_engines(workspace))
    known = {name: engine for engine in reversed(engines) for name in engine.job_ids()}
    if ref in known:
        return Job(ref, known[ref])
    if ref == "last" and (found := [status for engine in engines for status in engine.jobs()]):
        newest = max(found, key=lambda status: status.created_at)
        return Job(newest.job_id, known[newest.job_id])
    matches = sorted(name for name in known if ref and name.startswith(ref))
    if len(matches) != 1:
        runs = list_headers(workspace, kind="train")
        matches = [run.id for run in runs if run.name == ref and run.id in known][:1] or matches
    if len(matches) > 1:
        some = ", ".join(matches[:3])
        raise SpecError(f"{ref!r} matches {len(matches)} jobs", hint=f"use a longer prefix: {some}")
    if matches:
        return Job(matches[0], known[matches[0]])
    if workspace.is_remote and (other := _find_other(workspace, ref)):
        return other
    what, hint = f"no job matches {ref!r}", "'timonel jobs' lists the jobs of this workspace"
    if ref == "last" or not (known or workspace.is_remote):
        what, hint = "this workspace has no jobs", "start one with 'timonel train SCRIPT'"
    raise NotFoundError(what, hint=hint)


def _others(workspace: Workspace, local: Iterable[JobStatus]) -> list[JobStatus]:
    """Return the jobs of other machines in a bucket, and those that clusters deleted."""
    if not workspace.is_remote:
        return []
    known = {status.job_id for status in local}
    runs = [run for run in list_runs(workspace, kind="train") if run.job_id not in {None, *known}]
    return [status_of(run) for run in with_outcomes(workspace, runs)]


def status_of(run: RunRecord) -> JobStatus:
    """Return the status of a run's job on another machine."""
    is_lost = run.status == "lost"
    is_of_machine = run.header.engine in {None, DEFAULT_ENGINE}
    return JobStatus(
        job_id=run.id,
        state=JobState.FAILED if is_lost else JobState(run.status),
        restarts=run.restarts,
        cause=FailureCause(run.cause) if run.cause in set(FailureCause) else None,
        message=run.message,
        created_at=run.started_at,
        ended_at=run.ended_at,
        machine=(run.machine or "unknown") if is_of_machine else None,
    )


def _find_other(workspace: Workspace, ref: str) -> Job | None:
    """Return an ended job of a cluster, of which only the bucket knows."""
    if workspace.local_copy is None:
        workspace = find_workspace(workspace.uri, create=False)
    try:
        run = read_run(workspace, ref, kind="train")
    except NotFoundError:
        return None
    engine = get_engine(run.header.engine, workspace)
    if not engine.shares_machine:
        return Job(run.id, engine)
    runs = "ran" if run.is_finished else "runs"
    raise RemoteJobError(
        f"{run.id} {runs} on the machine {run.machine or 'unknown'}, not on this one",
        hint=f"repeat the command there; here, 'timonel runs show {run.id}' shows its progress",
    )


def save_job(workspace: Workspace, spec: JobSpec) -> None:
    """Keep a job's specification in its run, so that other machines can resume it."""
    path = workspace.runs / spec.job_id / _FILE_NAME
    write_document(path, "job", {"spec": spec.model_dump(mode="json")})
    # It contains the tasks' environment, which may hold secrets.
    path.chmod(0o600)


def restore_job(
    workspace: Workspace, ref: str, wait: Callable[[float], object] = time.sleep
) -> Job:
    """Continue a job of another machine here, from its checkpoints in the bucket.

    Its program and its data must be at the same places as there. A job that has not ended is
    watched for a minute: if it lives, it is left alone.
    """
    run = read_run(workspace, ref, kind="train")
    if run.status == "succeeded":
        raise JobError(f"only a failed or stopped job can be resumed, but {run.id} has succeeded")
    if not run.is_finished and _lives(workspace, run.id, wait):
        raise JobError(f"{run.id} still runs on another machine", hint="stop it there")
    stored = read_document(workspace.runs / run.id / _FILE_NAME, "job")
    spec = JobSpec.model_validate(stored["spec"])
    engine = get_engine(run.header.engine, workspace)
    writer = open_run(workspace, run.id)
    writer.event(RESUME, host=socket.gethostname())
    if workspace.local_copy is not None:
        workspace.local_copy.runs.push(run.id)
    try:
        engine.submit(spec)
    except BaseException as error:
        writer.finish("failed", str(error), "engine")
        raise
    return Job(run.id, engine)


def _lives(workspace: Workspace, run_id: str, wait: Callable[[float], object]) -> bool:
    """Watch a job of another machine for a sign of life."""
    if workspace.local_copy is None:
        return False
    _logger.warning("watching for %.0f s whether %s still runs", _SILENT_S, run_id)
    store = workspace.local_copy.store
    before = _sign_of(store, run_id)
    for _ in range(math.ceil(_SILENT_S / _LOOK_S)):
        wait(_LOOK_S)
        if _sign_of(store, run_id) != before:
            return True
    return False


def _sign_of(store: ObjectStore, run_id: str) -> bytes | None:
    try:
        return store.read(alive_name(run_id))
    except NotFoundError:
        return None


def _engines(workspace: Workspace) -> Iterator[Engine]:
    """Yield the engines of the workspace's jobs, the default one first."""
    yield get_engine(None, workspace)
    if len(engine_names()) == 1:
        return  # saves reading all runs
    named = {header.engine for header in list_headers(workspace, kind="train")}
    for name in sorted(named - {None, DEFAULT_ENGINE}, key=str):
        try:
            yield get_engine(name, workspace)
        except (SpecError, EngineError) as error:
            _logger.warning("jobs are missing: %s", error.message)

"""Restart a failed or stopped training job with its run."""

from __future__ import annotations

from timonel.engines import Engine, JobState, ResumingEngine
from timonel.errors import NotFoundError, SpecError
from timonel.storage import Workspace
from timonel.tracking import RunWriter, open_run, read_run
from timonel.tracking.events import RESUME
from timonel.tracking.writer import FinishStatus


def resume_job(workspace: Workspace, engine: Engine, job_id: str) -> None:
    """Continue a job and its run from its checkpoints; return once accepted.

    Args:
        workspace: Workspace of the run.
        engine: The job's engine.
        job_id: The job.

    Raises:
        NotFoundError: The job does not exist.
        SpecError: The engine cannot restart jobs.
        JobError: The job has not ended, or has succeeded.
        EngineError: The job could not be started; job and run are unchanged.
    """
    if not isinstance(engine, ResumingEngine):
        raise SpecError(f"expected an engine that starts ended jobs again, got {engine.name}")
    state = engine.status(job_id).state
    writer = _writer(workspace, job_id)
    if writer is None or not state.is_final or state is JobState.SUCCEEDED:
        engine.resume(job_id)  # raises the matching error
        return
    before = read_run(workspace, job_id)
    # Written before the job starts: its sidecars exit when they see the run's end.
    writer.event(RESUME)
    try:
        engine.resume(job_id)
    except BaseException:
        status: FinishStatus = "stopped" if before.status == "stopped" else "failed"
        writer.finish(status, before.message, before.cause)
        raise


def _writer(workspace: Workspace, job_id: str) -> RunWriter | None:
    try:
        return open_run(workspace, job_id)
    except NotFoundError:
        return None  # a job without a run

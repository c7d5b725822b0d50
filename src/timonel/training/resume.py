"""Starting a training job again that has ended without success: the same job and the same run."""

from __future__ import annotations

from timonel.engines import Engine, JobState, ResumingEngine
from timonel.errors import NotFoundError, SpecError
from timonel.storage import Workspace
from timonel.tracking import RunWriter, open_run, read_run
from timonel.tracking.events import RESUME
from timonel.tracking.writer import FinishStatus


def resume_job(workspace: Workspace, engine: Engine, job_id: str) -> None:
    """Have a job go on from its checkpoints, with its run; return once it is accepted.

    Args:
        workspace: Where its run is.
        engine: Whose job it is.
        job_id: The job.

    Raises:
        NotFoundError: There is no such job.
        SpecError: The engine starts no job again.
        JobError: It has not ended, or has succeeded.
        EngineError: It cannot be started; job and run are as they were.
    """
    if not isinstance(engine, ResumingEngine):
        raise SpecError(f"expected an engine that starts ended jobs again, got {engine.name}")
    state = engine.status(job_id).state
    writer = _writer(workspace, job_id)
    if writer is None or not state.is_final or state is JobState.SUCCEEDED:
        engine.resume(job_id)  # which says what is wrong with those
        return
    before = read_run(workspace, job_id)
    # Before the job begins: what runs beside it ends when it sees the run's end.
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

"""Complete the records of runs whose jobs ended on another machine without doing so."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from timonel.engines import Engine, FailureCause, JobState, JobStatus, get_engine
from timonel.errors import EngineError, NotFoundError, TimonelError
from timonel.storage import Workspace, find_workspace
from timonel.tracking import RunRecord, read_run
from timonel.training.finish import finish_run

_LATE_S = 3600.0
"""Time that a job has to complete the record of its run, and a submission to be accepted."""
_LATE_HERE_S = 60.0
"""The same on this machine."""
_logger = logging.getLogger(__name__)


def with_outcomes(workspace: Workspace, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return runs with the outcomes of their jobs, as far as their engines know them."""
    # An engine completes the records of jobs that ended without their coordinators when it is asked
    # for their status. Runs whose submission was interrupted, or whose job ended long ago, are
    # completed here. Without access to an engine, its runs stay as they are.
    unfinished = [run for run in runs if run.job_id is not None and not run.is_finished]
    if unfinished and workspace.is_remote and workspace.local_copy is None:
        workspace = find_workspace(workspace.uri, create=False)
    engines = {
        name: _engine(workspace, name) for name in {each.header.engine for each in unfinished}
    }
    ended = {}
    for run in unfinished:
        engine = engines[run.header.engine]
        if engine is None:
            continue
        try:
            ended[run.id] = _completed(workspace, run, engine)
        except TimonelError as error:
            _logger.warning("the status of %s may be outdated: %s", run.id, error.message)
            if isinstance(error, EngineError):
                engines[run.header.engine] = None  # do not wait for each of its jobs
    return [ended.get(run.id, run) for run in runs]


def _engine(workspace: Workspace, name: str | None) -> Engine | None:
    try:
        return get_engine(name, workspace)
    except TimonelError as error:
        _logger.info("cannot ask the engine %s: %s", name, error)
        return None


def _completed(workspace: Workspace, run: RunRecord, engine: Engine) -> RunRecord:
    now = time.time()
    try:
        status = engine.status(run.id)
    except NotFoundError:
        if engine.shares_machine:
            return run  # of another machine that shares the workspace
        status = JobStatus(
            job_id=run.id,
            state=JobState.FAILED,
            cause=FailureCause.ENGINE,
            message="its submission was interrupted",
            ended_at=run.last_event_at or run.started_at,
        )
    if not status.state.is_final:
        return run
    ended_at = status.ended_at or now
    if ended_at >= now:  # nobody saw its end
        ended_at = run.last_event_at or run.started_at
    if now - ended_at > (_LATE_HERE_S if engine.shares_machine else _LATE_S):
        finish_run(workspace, run.id, status)  # unless it is finished by now
    return read_run(workspace, run.id)

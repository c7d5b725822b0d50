"""Jobs of a workspace, each on the engine that its run has recorded."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from timonel.engines import DEFAULT_ENGINE, Engine, JobStatus, engine_names, get_engine
from timonel.errors import NotFoundError, SpecError
from timonel.storage import Workspace
from timonel.tracking.reading import list_headers
from timonel.training.handles import Job

_logger = logging.getLogger(__name__)


def list_jobs(workspace: Workspace) -> list[JobStatus]:
    """Return the status of all jobs of a workspace, newest first."""
    found = [status for engine in _engines(workspace) for status in engine.jobs()]
    return sorted(found, key=lambda status: -status.created_at)


def find_job(workspace: Workspace, ref: str) -> Job:
    """Return a job by its ID, a prefix of it, or ``last``.

    Raises:
        NotFoundError: No job matches.
        SpecError: Several jobs match the prefix, or the job's engine is not installed.
    """
    engines = list(_engines(workspace))
    known = {name: engine for engine in reversed(engines) for name in engine.job_ids()}
    if ref in known:
        return Job(ref, known[ref])
    if ref == "last" and (newest := list_jobs(workspace)):
        return Job(newest[0].job_id, known[newest[0].job_id])
    matches = sorted(name for name in known if ref and name.startswith(ref))
    if len(matches) > 1:
        raise SpecError(
            f"{ref!r} matches {len(matches)} jobs",
            hint=f"use a longer prefix: {', '.join(matches[:3])}",
        )
    if matches:
        return Job(matches[0], known[matches[0]])
    if ref == "last" or not known:
        raise NotFoundError(
            "this workspace has no jobs", hint="start one with 'timonel train SCRIPT'"
        )
    raise NotFoundError(
        f"no job matches {ref!r}", hint="'timonel jobs' lists the jobs of this workspace"
    )


def _engines(workspace: Workspace) -> Iterator[Engine]:
    """Yield the engines of the workspace's jobs, the default one first."""
    yield get_engine(None, workspace)
    if len(engine_names()) == 1:
        return  # saves reading all runs
    named = {header.engine for header in list_headers(workspace, kind="train")}
    for name in sorted(named - {None, DEFAULT_ENGINE}, key=str):
        try:
            yield get_engine(name, workspace)
        except SpecError as error:
            _logger.warning("jobs are missing: %s", error.message)

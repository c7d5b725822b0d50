"""Find jobs by id, id prefix or ``last``."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from timonel.errors import NotFoundError, SpecError, TimonelError

if TYPE_CHECKING:
    from timonel.engines import Engine, JobStatus
    from timonel.storage import Workspace

_logger = logging.getLogger(__name__)


def engine_of(workspace: Workspace) -> Engine:
    """Return the engine of the workspace's jobs."""
    from timonel.engines import get_engine

    return get_engine("local", workspace)


def all_jobs(workspace: Workspace) -> list[JobStatus]:
    """Return the status of every job of the workspace, newest first.

    Unreadable jobs, such as those of a newer release, are logged and left out.
    """
    engine = engine_of(workspace)
    found = []
    for name in job_ids(workspace):
        try:
            found.append(engine.status(name))
        except NotFoundError:
            continue  # removed since it was listed
        except TimonelError as error:
            _logger.warning("left out the job %s: %s", name, error)
    return sorted(found, key=lambda status: status.created_at, reverse=True)


def find_job(workspace: Workspace, ref: str) -> str:
    """Return the id of the job that ``ref`` means.

    ``ref`` is an id, its prefix, or ``last``.

    Raises:
        NotFoundError: No job matches.
        SpecError: Several jobs match the prefix.
    """
    known = job_ids(workspace)
    if ref in known:
        return ref
    if ref == "last" and (readable := all_jobs(workspace)):
        return readable[0].job_id
    fits = [name for name in known if ref and name.startswith(ref)]
    if len(fits) > 1:
        raise SpecError(
            f"expected the beginning of one job's id, got {ref!r}, which fits {len(fits)}",
            hint=f"give more of it: {', '.join(fits[:3])}",
        )
    if not fits:
        raise NotFoundError(
            "expected a job, found none" if ref == "last" else f"expected a job, got {ref!r}",
            hint="'timonel jobs' lists the jobs of this workspace",
        )
    return fits[0]


def run_events(workspace: Workspace, job_id: str) -> list[dict[str, Any]]:
    """Return the events of a job's run; empty if it has none."""
    from timonel.tracking import read_run

    with contextlib.suppress(TimonelError):
        return read_run(workspace, job_id).events()
    return []


def job_ids(workspace: Workspace) -> list[str]:
    """Return the ids of all jobs of the workspace, sorted."""
    folders = workspace.jobs.iterdir() if workspace.jobs.is_dir() else ()
    return sorted(path.name for path in folders if path.is_dir() and path.name[0] != ".")

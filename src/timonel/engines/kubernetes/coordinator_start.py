"""What a new coordinator of a job starts from, or why none can run."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from timonel.engines.base import FailureCause, JobState, JobStatus
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.job_store import check_writable, read_spec, read_status
from timonel.engines.kubernetes.names import STATUS_KEY
from timonel.engines.spec import JobSpec
from timonel.errors import InputError, NotFoundError, TimonelError
from timonel.storage import Workspace, find_workspace
from timonel.storage.bucket_errors import AccessDeniedError, UnavailableError
from timonel.storage.uris import shared_folder as folder_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """What a coordinator starts from.

    Attributes:
        workspace: The workspace, of which this pod has a local copy.
        spec: The job.
        status: Its status. If it is final, the tasks have ended and the results are saved; only the
            epilogue and the publication are left.
    """

    workspace: Workspace
    spec: JobSpec
    status: JobStatus


def read_start(api: Api, job_id: str, uri: str) -> Start | None:
    """Return what a job's next coordinator starts from.

    None if it has nothing to do: the job has ended, or pods can never use the workspace. This
    publishes the reason then.
    """
    config_map = api.find("ConfigMap", job_id)  # none: somebody deleted it
    published = None
    if config_map is not None:
        published = JobStatus.model_validate_json(config_map["data"][STATUS_KEY])
    if published is not None and published.state.is_final:
        return None
    try:
        workspace = find_workspace(uri, create=False)
        spec = read_spec(workspace, job_id)
        check_writable(workspace, job_id)
        recorded = read_status(workspace, job_id)
    except (NotFoundError, InputError) as error:
        if published is None or not _is_lasting(error, uri):
            raise
        _refuse(api, published, error)
        return None
    if published is None and recorded is not None and recorded.state.is_final:
        return None
    status = published or recorded or JobStatus.of(spec, time.time())
    return Start(workspace, spec, _continued(status, recorded))


def _continued(status: JobStatus, recorded: JobStatus | None) -> JobStatus:
    """Return the status with which another coordinator continues.

    Args:
        status: Status as published.
        recorded: Status in the bucket, which has the outcome before it is published.
    """
    if status.state is JobState.PENDING:
        return status.resumed()  # without the message of an earlier coordinator
    outcome = recorded if recorded is not None and recorded.state.is_final else None
    if outcome is not None and outcome.generation == status.generation:
        return outcome
    return status.restarted("the coordinator was replaced")


def _is_lasting(error: TimonelError, uri: str) -> bool:
    """Decide whether another attempt to use the workspace would fail, too."""
    if isinstance(error, AccessDeniedError):
        return True
    return folder_of(uri) is not None and not isinstance(error, UnavailableError)


def _refuse(api: Api, status: JobStatus, error: TimonelError) -> None:
    """Publish why no coordinator can run the job; whoever reads that records its end."""
    cure = error.hint
    if isinstance(error, NotFoundError):
        cure = "the claim must be the storage that the submitting machine has there"
    message = f"pods cannot use the workspace: {error.message}; {cure}"
    logger.error("%s", message)
    failed = status.resumed().model_copy(update={"cause": FailureCause.ENGINE, "message": message})
    api.patch("ConfigMap", status.job_id, {"data": {STATUS_KEY: failed.model_dump_json()}})

"""Upload a job's run and model: ``python -m timonel.training.upload WORKSPACE RUN_ID``.

A sidecar of jobs whose workspace is in a bucket. It uploads events while the job runs, so that
other machines can follow it, and stays until everything is uploaded. Tasks never wait for it.
Imports no TensorFlow.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from timonel.errors import TimonelError
from timonel.models.exports import read_export
from timonel.storage import Workspace, find_workspace
from timonel.storage.object_store import forget_connections
from timonel.tracking.events import FILE_NAME, EventReader, is_over

PATIENCE_S = 900.0
"""Time for uploads after the job's end, with a server that is away meanwhile."""
_FIRST_S, _LONGEST_S = 1.0, 20.0
# Each upload adds an object: the interval grows with the job, to a few hundred objects a day.
_SHARE = 0.05
_logger = logging.getLogger(__name__)


def upload_job(workspace: Workspace, run_id: str) -> None:
    """Upload a job's model, then its run, which tells readers that the model is there.

    Args:
        workspace: Workspace of the run.
        run_id: The run, whose ID is also the job's.

    Raises:
        InputError: The bucket cannot be written.
    """
    replica = workspace.replica
    if replica is None:
        return
    folder = workspace.jobs / run_id / "export"
    if _is_complete(folder):
        replica.push_folder(folder, folder, replace=True)
    replica.push_run(run_id)


def follow(
    uri: str,
    run_id: str,
    *,
    stop: Callable[[], bool],
    wait: Callable[[float], object],
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """Upload a run while it goes on; return whether all of it was uploaded.

    Args:
        uri: Location of the workspace.
        run_id: The run.
        stop: Whether to return after one last upload.
        wait: Waits for some seconds; may return early.
        now: Returns a time in seconds.
    """
    local = find_workspace(uri, create=False, offline=True)
    events = EventReader(local.runs / run_id / FILE_NAME)
    begun, has_ended = now(), False
    while True:
        stopping = stop()
        has_ended = is_over(events.read(), has_ended)
        try:
            workspace = find_workspace(uri, create=False)
            if has_ended:
                upload_job(workspace, run_id)
            elif workspace.replica is not None:
                workspace.replica.push_run(run_id)
            if has_ended or stopping:
                return has_ended
        except TimonelError as error:
            _logger.warning("%s", error)
            if stopping:
                return False
            forget_connections()  # credentials may have been renewed
        wait(min(_LONGEST_S, max(_FIRST_S, _SHARE * (now() - begun))))


def _is_complete(folder: Path) -> bool:
    try:
        read_export(folder)
    except TimonelError:
        return False
    return True


def main(arguments: list[str]) -> int:
    """Upload the run named by the arguments until it has ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    uri, run_id = arguments
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return 0 if follow(uri, run_id, stop=stopped.is_set, wait=stopped.wait) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

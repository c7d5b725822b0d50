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
from uuid import uuid4

from timonel.engines import get_engine
from timonel.errors import TimonelError
from timonel.logs import configure_logging
from timonel.models.exports import read_export
from timonel.storage import Workspace, find_workspace
from timonel.storage.filesystems import forget_connections
from timonel.storage.growing_file import DivergedError
from timonel.storage.object_store import ObjectStore
from timonel.tracking import read_run
from timonel.tracking.events import FILE_NAME, EventReader, is_over

PATIENCE_S = 900.0
"""Time for uploads after the job's end, with a server that is away meanwhile."""
_FIRST_S, LONGEST_S = 1.0, 20.0
# Each upload adds an object: the interval grows with the job, to a few hundred objects a day.
_SHARE = 0.05
_logger = logging.getLogger(__name__)


def upload_job(workspace: Workspace, run_id: str) -> None:
    """Upload a job's model, then its run, which tells readers that the model is there."""
    local_copy = workspace.local_copy
    if local_copy is None:
        return
    folder = workspace.jobs / run_id / "export"
    if _is_complete(folder):
        local_copy.runs.check_continues(run_id)  # before another machine's model is replaced
        local_copy.push_folder(folder, folder, replace=True)
    local_copy.runs.push(run_id)


def alive_name(run_id: str) -> str:
    """Return the name of the object that changes every `LONGEST_S` while a job runs."""
    return f"jobs/{run_id}/alive"


def follow(
    uri: str,
    run_id: str,
    *,
    stop: Callable[[], bool],
    wait: Callable[[float], object],
    taken_over: Callable[[], object],
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """Upload a run while it goes on; return whether all of it was uploaded.

    After ``stop`` it is uploaded a last time; ``wait`` may return early. If another machine
    continues the job, ``taken_over`` is called.
    """
    local = find_workspace(uri, create=False, offline=True)
    events = EventReader(local.runs / run_id / FILE_NAME)
    sign = _SignOfLife(run_id)
    begun, has_ended = now(), False
    while True:
        stopping = stop()
        has_ended = is_over(events.read(), has_ended)
        try:
            workspace = find_workspace(uri, create=False)
            if has_ended:
                upload_job(workspace, run_id)
            elif workspace.local_copy is not None:
                workspace.local_copy.runs.push(run_id)
                sign.renew(workspace.local_copy.store)
            if has_ended or stopping:
                return has_ended
        except DivergedError as error:
            _logger.warning("%s", error)
            taken_over()
            return False
        except TimonelError as error:
            _logger.warning("%s", error)
            if stopping:
                return False
            forget_connections()  # credentials may have been renewed
        wait(min(LONGEST_S, max(_FIRST_S, _SHARE * (now() - begun))))


class _SignOfLife:
    """Object that changes while a job runs: whatever the clocks say, others see that it lives."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._written: set[bytes] = set()

    def renew(self, store: ObjectStore) -> None:
        """Change the object; DivergedError if another machine has: the job continues there."""
        name, content = alive_name(self._run_id), uuid4().hex.encode()
        if self._written and store.read(name) not in self._written:
            raise DivergedError(f"{self._run_id} continues on another machine")
        self._written.add(content)  # a write whose answer is lost may have succeeded
        store.write(name, content)
        self._written = {content}


def _is_complete(folder: Path) -> bool:
    try:
        read_export(folder)
    except TimonelError:
        return False
    return True


def main(arguments: list[str]) -> int:
    """Upload the run named by the arguments until it has ended."""
    configure_logging()
    uri, run_id = arguments
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())

    def stop_here() -> None:
        workspace = find_workspace(uri, create=False, offline=True)
        get_engine(read_run(workspace, run_id).header.engine, workspace).cancel(run_id)

    done = follow(uri, run_id, stop=stopped.is_set, wait=stopped.wait, taken_over=stop_here)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The coordinator of one job: ``python -m timonel.engines.kubernetes.coordinator JOB WORKSPACE``.

It makes the same decisions as the supervisor of a job on one machine, over pods that connect to it.
All that it must not lose is in the cluster or in the bucket: after its death, its next pod restarts
the job's tasks from what they saved.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from timonel.engines.base import FailureCause, JobState, JobStatus
from timonel.engines.commands import Commands
from timonel.engines.coordination.lifecycle import (
    CoordinatorState,
    Event,
    ScaleRequested,
    StopRequested,
)
from timonel.engines.coordination.supervision import supervise
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.api_thread import ApiThread, SeenCluster
from timonel.engines.kubernetes.coordinator_start import read_start
from timonel.engines.kubernetes.files.changes import (
    Change,
    decode_change,
    encode_change,
    encode_index,
)
from timonel.engines.kubernetes.files.index_store import IndexStore
from timonel.engines.kubernetes.files.thread import Failing, FileThread
from timonel.engines.kubernetes.job_log import JobLog
from timonel.engines.kubernetes.job_store import (
    bucket_of,
    shared_folder,
    write_status,
)
from timonel.engines.kubernetes.launcher import KubernetesLauncher
from timonel.engines.kubernetes.lease import Lease, LostLeaseError
from timonel.engines.kubernetes.links import parse_address
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.kubernetes.status_publisher import StatusPublisher, ending
from timonel.engines.kubernetes.variables import COORDINATOR, POD_NAME, TOKEN, work_dir
from timonel.engines.source import unpack
from timonel.engines.spec import JobSpec
from timonel.errors import (
    AlreadyExistsError,
    CorruptError,
    NotFoundError,
    TimonelError,
)
from timonel.logs import configure_logging
from timonel.processes.clock import SteadyClock
from timonel.processes.descriptors import raise_limit
from timonel.processes.loop import Loop
from timonel.processes.tree import adopt_orphans, own_identity, reap
from timonel.storage import Workspace

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
_TICK_S = 0.5
_SAVE_S = 1.0
_COLLECT_S = 300.0
_END_S = 900.0
"""How long the end of a job waits for the cluster, and unless it succeeded, for the bucket."""
_LEAVE_S = 10.0

logger = logging.getLogger(__name__)


class PodDeleted(Exception):  # noqa: N818 - not an error
    """This pod is being deleted; another one continues the job."""


class Coordinator:
    """Runs a job to its end.

    Args:
        status: Its status so far. If it is final, only the end of the job is left to complete.
        workspace: The workspace, of which this pod has a local copy.
        token: What they must show.
    """

    def __init__(
        self,
        spec: JobSpec,
        status: JobStatus,
        *,
        workspace: Workspace,
        api: ApiThread,
        listener: socket.socket,
        token: str,
        work: Path,
    ) -> None:
        self._spec = spec
        self._status = status
        self._api = api
        self._loop = Loop(_SIGNALS)
        self._now = SteadyClock()
        self._events: deque[Event] = deque()
        self._workspace = workspace
        self._bucket = bucket_of(workspace)
        store = self._bucket.store
        self._index = IndexStore(store, spec.job_id)
        self._log = JobLog(store, spec.job_id)
        self._files = FileThread(
            shared_folder(workspace, spec, is_hub=True),
            self._send_changes,
            number=self._index.add,
            tick=self._save_now_and_then,
        )
        self._save_at = 0.0
        self._collect_at = time.monotonic() + _COLLECT_S
        self._saving = Failing()
        self._seen = SeenCluster()
        self._publisher = StatusPublisher(
            ending(status) if status.state.is_final else status,
            self._files,
            flush=self._flush,
            record=self._record,
            send=api.publish,
        )
        job_dir = workspace.jobs / spec.job_id
        job_dir.mkdir(parents=True, exist_ok=True)
        self._launcher = KubernetesLauncher(
            spec=spec,
            loop=self._loop,
            emit=self._events.append,
            token=token,
            listener=listener,
            files=self._files,
            welcome=self._welcome,
            take=self._take,
            resize=api.resize,
            discard_pod=api.delete,
            keep_pod=api.keep,
        )
        self._commands = Commands(
            spec=spec,
            job_dir=job_dir,
            working_dir=work / "source",
            logs=work / "commands",
            loop=self._loop,
            token=str(own_identity()),
        )

    def run(self) -> JobStatus:
        """Run the job to its end, and return its outcome."""
        try:
            self._begin()
            has_ended = self._status.state.is_final
            return self._end(self._status if has_ended else self._supervise())
        except PodDeleted:
            self._leave()
            raise

    def _begin(self) -> None:
        self._files.start()
        self._loop.watch(self._files.fileno(), self._files.deliver)
        self._loop.watch(self._api.fileno(), self._read_requests)
        self._files.reset(self._index.load())
        # An earlier coordinator may have uploaded more of a run than it noted in the index.
        self._files.ask(lambda: self._files.persist(self._pull_runs), lambda _: None)
        if self._save_all(lambda: self._seen.is_stopped):
            self._commands.start_sidecars()

    def _supervise(self) -> JobStatus:
        return supervise(
            CoordinatorState(self._spec, self._status),
            self._launcher,
            self._events,
            wait=self._wait,
            publish=self._publisher.publish,
            now=self._now,
        )

    def _end(self, outcome: JobStatus) -> JobStatus:
        deadline = time.monotonic() + _END_S
        # It is no success without its results; the user may still stop the job.
        must_save = outcome.state is JobState.SUCCEEDED

        def gives_up() -> bool:
            return time.monotonic() > deadline and (not must_save or self._seen.is_stopped)

        self._publisher.publish(ending(outcome))
        # Pods stay until then: without the outcome in the bucket, another coordinator needs them.
        self._files.scan()
        is_saved = self._persist(functools.partial(self._save_outcome, outcome), gives_up)
        if must_save and not is_saved:
            message = f"its results were not saved: {self._files.failing.error}"
            failure = {"state": JobState.FAILED, "cause": FailureCause.ENGINE, "message": message}
            outcome = outcome.model_copy(update=failure)
        self._launcher.close()
        self._commands.run_epilogue(outcome)
        is_saved = is_saved and self._save_all(gives_up)
        self._publisher.end(outcome)
        logger.info("ended as %s: %s", outcome.state, outcome.message)
        self._commands.wind_down()
        if is_saved and self._save_all(lambda: time.monotonic() > deadline + _END_S):
            self._files.close()
        return outcome

    def _leave(self) -> None:
        """Save the output so far; pods keep later output for the next coordinator."""
        done: list[bool] = []
        self._files.ask(self._flush, lambda _: done.append(True))
        deadline = time.monotonic() + _LEAVE_S
        while not done and time.monotonic() < deadline:
            self._loop.wait(_TICK_S)

    def _wait(self, timeout_s: float | None) -> None:
        signals = self._loop.wait(min(_TICK_S, _TICK_S if timeout_s is None else timeout_s))
        if signal.SIGTERM in signals or signal.SIGINT in signals:
            raise PodDeleted
        if signal.SIGCHLD in signals:
            for pid, _ in reap():
                self._commands.died(pid)
        self._api.check_lease()
        self._publisher.show(self._files.failing.error or self._saving.error)
        self._launcher.check(self._seen.reasons.get)
        self._api.expect(self._launcher.missing())

    def _record(self, status: JobStatus) -> None:
        """Note the state where it outlives the objects in the cluster."""
        try:
            write_status(self._workspace, status)
        except TimonelError as error:
            logger.warning("%s", error)

    def _pull_runs(self) -> None:
        for folder in self._spec.folders:
            parent, _, name = folder.rpartition("/")
            if parent == "runs":
                try:
                    self._bucket.runs.pull(name)
                except (AlreadyExistsError, CorruptError, NotFoundError) as error:
                    logger.warning("%s", error)  # another attempt would fail, too

    def _flush(self) -> None:
        try:
            self._log.flush()
        except TimonelError as error:
            logger.warning("%s", error)

    def _save_all(self, gives_up: Callable[[], bool]) -> bool:
        self._files.scan()
        return self._persist(self._save, gives_up)

    def _persist(self, work: Callable[[], None], gives_up: Callable[[], bool]) -> bool:
        """Do something with the bucket, after all that came before; return whether it succeeded.

        Repeats it until it succeeds, or ``gives_up`` returns true.
        """
        saved: list[None] = []
        done: list[bool] = []
        self._files.ask(lambda: self._files.persist(work), saved.append)
        self._files.then(lambda: done.append(True))
        while not done and not gives_up():
            self._wait(_TICK_S)
        return bool(saved)

    def _read_requests(self) -> None:
        before, self._seen = self._seen, self._api.read()
        if self._seen.is_stopped:
            self._events.append(StopRequested())
        if self._seen.sizes and self._seen.sizes != before.sizes:
            self._events.append(ScaleRequested(self._seen.sizes))

    def _welcome(self) -> Mapping[str, Any]:
        """Return the welcome message for a joining pod; called in the files' thread."""
        return {"index": encode_index(self._index.index), "grace_s": self._spec.stop_grace_s}

    def _take(self, task_id: str, message: Mapping[str, Any]) -> None:
        if message["kind"] == "output":
            for line in message["lines"]:
                self._log.add(task_id, line)
                sys.stdout.write(f"{task_id} | {line}\n")
            sys.stdout.flush()
        elif message["kind"] == "changes":
            self._files.apply([decode_change(change) for change in message["changes"]])

    def _send_changes(self, changes: list[Change]) -> None:
        encoded = [encode_change(change) for change in changes]
        self._launcher.broadcast({"kind": "changes", "changes": encoded})

    def _save_now_and_then(self) -> None:
        now = time.monotonic()
        if now < self._save_at:
            return
        try:
            self._save()
            if now > self._collect_at:
                self._collect_at = now + _COLLECT_S
                self._index.collect(now)
            self._saving.succeeded()
        except TimonelError as error:
            logger.warning("%s", error)
            self._saving.failed(error)
        self._save_at = time.monotonic() + _SAVE_S

    def _save(self) -> None:
        self._log.flush()
        self._index.save()

    def _save_outcome(self, outcome: JobStatus) -> None:
        self._save()
        write_status(self._workspace, outcome)


def main(arguments: list[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the coordinator that the environment describes; return its exit code."""
    configure_logging()
    job_id, uri = arguments
    adopt_orphans()
    raise_limit()  # each pod has a connection
    api = Api.connect(ClusterSettings.of(environ))
    lease = Lease(api, job_id, environ[POD_NAME])
    lease.acquire()
    start = read_start(api, job_id, uri)
    if start is None:
        return 0
    spec = start.spec
    work = work_dir(environ)
    (work / "source").mkdir(parents=True, exist_ok=True)
    if spec.source is not None and not any((work / "source").iterdir()):
        unpack(spec.source, work / "source")
    _, port = parse_address(environ[COORDINATOR])
    thread = ApiThread(api, job_id, lease)
    coordinator = Coordinator(
        spec,
        start.status,
        workspace=start.workspace,
        api=thread,
        listener=socket.create_server(("", port), backlog=1024),
        token=environ[TOKEN],
        work=work,
    )
    thread.start()
    with contextlib.ExitStack() as end:
        end.callback(lease.release)
        end.callback(thread.close, _END_S)
        try:
            coordinator.run()
        except PodDeleted:
            logger.info("another pod continues the job")
            return 1
        except LostLeaseError as error:
            logger.warning("%s", error)
            end.pop_all()  # the other coordinator speaks for the job
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run one task in this terminal, through an agent as on an engine.

SIGTERM and SIGHUP stop the task, which saves and exits with 75, and the run stays open to be
continued. Ctrl-C stops the run, and a second one kills the task. All tasks stop with a run that has
failed or was stopped.
"""

from __future__ import annotations

import contextlib
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

from timonel.engines import EXIT_RETRYABLE, FailureCause, JobSpec, JobState, JobStatus, LogLine
from timonel.engines.agent.client import Demand, run_task
from timonel.engines.agent.messages import StartOrder, start_order
from timonel.engines.cluster import TaskAssignment
from timonel.engines.coordination.failures import Failure, TaskExit, fail
from timonel.engines.coordination.restarts import NEVER_RETRIED
from timonel.engines.environment import role_environment, task_environment
from timonel.errors import Interrupted, JobError, SpecError
from timonel.processes.tree import own_identity
from timonel.storage import Workspace, exclusive, write_text
from timonel.storage.locks import LockedError
from timonel.tracking import read_run
from timonel.tracking.events import FILE_NAME, FINISH, EventReader
from timonel.tracking.mirrors.sidecar import mirror_in_background
from timonel.training.cluster import Cluster
from timonel.training.finish import finish_run, interruption
from timonel.training.terminal import is_noise

_LOCK_TIMEOUT_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_here(workspace: Workspace, spec: JobSpec, cluster: Cluster, *, serves: bool) -> None:
    """Run a task to its end; record the run's end if final.

    The job has the role of this task alone. A task that ``serves`` others ends with the run. The
    exit code of a JobError is the task's.
    """
    run_id, folder = spec.job_id, task_folder(workspace, spec.job_id, cluster)
    events = EventReader(workspace.runs / run_id / FILE_NAME)
    received: list[int] = []
    with _only_one(folder, run_id), _collecting_signals(received):
        task_exit = run_task(
            _start_order(spec, cluster, folder),
            grace_s=spec.stop_grace_s,
            demand=lambda: _demand(received, events, serves=serves),
            show=_show,
        )
    failure = fail(cluster.task_id, task_exit)
    is_essential = spec.roles[0].essential
    if signal.SIGINT in received:
        if not is_essential:
            raise Interrupted(
                f"interrupted, {cluster.task_id} has stopped", hint=f"{run_id} goes on"
            )
        _end(workspace, JobStatus(job_id=run_id, state=JobState.STOPPED))
        raise interruption(workspace, run_id)
    if failure is None:
        if cluster.is_chief:
            _end(workspace, JobStatus(job_id=run_id, state=JobState.SUCCEEDED))
    elif not (serves and read_run(workspace, run_id).is_finished):
        hint = _conclude(workspace, run_id, failure, is_essential=is_essential)
        error = JobError(_described(failure), hint=hint)
        error.exit_code = _exit_code(task_exit, failure, received)
        raise error


def task_folder(workspace: Workspace, run_id: str, cluster: Cluster) -> Path:
    """Return the folder of this task's files."""
    return workspace.jobs / run_id / "tasks" / cluster.task_id


def _described(failure: Failure) -> str:
    """Describe a failure as ``worker-0 failed: error in the script: KeyError: 'label'``."""
    if not failure.reported:
        return failure.message  # has the task's name
    what = "error in the script: " if failure.cause is FailureCause.USER_ERROR else ""
    return f"{failure.task_id} failed: {what}{failure.message}"


@contextlib.contextmanager
def _only_one(folder: Path, run_id: str) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(exclusive(folder / "lock", timeout_s=_LOCK_TIMEOUT_S))
        except LockedError:
            raise SpecError(
                f"{folder.name} of {run_id} is running already",
                hint="give each task its own --task-type and --task-index",
            ) from None
        yield


@contextlib.contextmanager
def _collecting_signals(received: list[int]) -> Iterator[None]:
    """Append received signals to a list; outside the main thread, this is not possible."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Ignored by nohup, or for jobs in a shell's background.
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {n: signal.signal(n, lambda number, _: received.append(number)) for n in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _demand(received: list[int], events: EventReader, *, serves: bool) -> Demand:
    if received:
        return Demand.KILL if received.count(signal.SIGINT) > 1 else Demand.STOP
    with contextlib.suppress(OSError):  # the shared file system may be away for a while
        for event in events.read():
            if event["type"] == FINISH and serves:
                return Demand.STOP_UNSAVED
            if event["type"] == FINISH and event.get("status") != "succeeded":
                return Demand.STOP
    return Demand.CONTINUE


def _start_order(spec: JobSpec, cluster: Cluster, folder: Path) -> StartOrder:
    start = {"generation": _next_generation(folder / "generation"), "attempt": 1}
    assignment = cast("TaskAssignment", {**cluster.tf_config(), **start})
    base = role_environment(spec, spec.roles[0], folder.parent.parent)
    if cluster.role == "evaluator":
        base.pop("TF_CONFIG", None)  # it would join the cluster, whose tasks wait for each other
    return start_order(
        spec,
        assignment,
        env=task_environment(base, folder, assignment, str(own_identity())),
        cwd=str(spec.source),
        task_dir=folder,
        log=folder.parent.parent / "logs" / f"{cluster.task_id}.log",
    )


def _next_generation(path: Path) -> int:
    """Return this start's number, counting from 1 per task."""
    before = path.read_text() if path.exists() else "0"
    number = int(before) + 1 if before.strip().isdecimal() else 1
    write_text(path, str(number))
    return number


def _show(line: LogLine) -> None:
    if is_noise(line.text):
        return
    if not _is_writable(sys.stdout):
        raise BlockingIOError
    # A stream that is closed, or lacks a character, must not end the task.
    with contextlib.suppress(ValueError):
        print(line.text, flush=True)  # noqa: T201 - the task's own output


def _is_writable(stream: TextIO) -> bool:
    """Tell whether a line can be written without waiting for the reader."""
    ready = select.poll()
    try:
        ready.register(stream, select.POLLOUT)
    except (OSError, ValueError, TypeError, AttributeError):
        return True  # no descriptor, as in notebooks
    return bool(ready.poll(0))


def _conclude(
    workspace: Workspace, run_id: str, failure: Failure, *, is_essential: bool
) -> str | None:
    """End the run if the failure would recur; return the hint for its error."""
    run = read_run(workspace, run_id)
    if failure.cause in NEVER_RETRIED:
        if is_essential:
            status = JobStatus(
                job_id=run_id,
                state=JobState.FAILED,
                cause=failure.cause,
                message=failure.message,
                failed_task=failure.task_id,
            )
            _end(workspace, status)
        return "its traceback is above" if failure.reported else None
    if run.is_finished:
        return f"{run_id} has ended ({run.status})"
    return f"start it again with the same command, and {run_id} continues from its last checkpoint"


def _exit_code(task_exit: TaskExit, failure: Failure, received: list[int]) -> int:
    """Return the task's exit code as a shell would, and 75 if it was stopped to be continued."""
    if task_exit.agent_lost or (received and failure.cause not in NEVER_RETRIED):
        return EXIT_RETRYABLE
    return task_exit.exit_code or 128 + (task_exit.signal or 0)


def _end(workspace: Workspace, status: JobStatus) -> None:
    finish_run(workspace, status.job_id, status)
    mirror_in_background(workspace)

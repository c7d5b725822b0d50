"""Run one task in this terminal, in place of an engine's agent.

The task is a child process, which the kernel kills if this process dies. It gets the same
environment as on an engine; its output goes to its log and the terminal. SIGTERM is forwarded:
the task saves and exits with 75, and the run stays open to be continued. Ctrl-C stops the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from timonel.engines import FailureCause, JobState, JobStatus
from timonel.engines.cluster import TaskAssignment, TaskEntry, encode
from timonel.engines.coordination.failures import Failure, TaskExit, fail, parse_report
from timonel.errors import JobError
from timonel.storage import Workspace, write_text
from timonel.tracking.events import FILE_NAME, FINISH, EventReader
from timonel.tracking.mirrors.sidecar import mirror_in_background
from timonel.training.cluster import ENVIRONMENT_VARIABLE, Cluster
from timonel.training.finish import finish_run, interruption
from timonel.training.terminal import Output

_TASK_MODULE = "timonel.training.worker"
_STOP_GRACE_S = 25.0
_POLL_S = 1.0
_FINAL = frozenset({FailureCause.USER_ERROR, FailureCause.OUT_OF_MEMORY})
"""Failures that would recur on a restart."""


@dataclass(frozen=True)
class ForegroundTask:
    """A task to run in this terminal.

    Attributes:
        workspace: Workspace of the run.
        run_id: The run, whose id is also the job's.
        spec: The tasks' document.
        cluster: The job's tasks and this task's position.
        env: Environment variables to add to this process's.
        cwd: Working directory.
        serves: Whether the task serves others and should end with the run.
    """

    workspace: Workspace
    run_id: str
    spec: Path
    cluster: Cluster
    env: Mapping[str, str]
    cwd: Path
    serves: bool = False

    @property
    def job_dir(self) -> Path:
        """The job's folder, shared by all its tasks."""
        return self.workspace.jobs / self.run_id

    @property
    def log(self) -> Path:
        """The log file of the task's output."""
        return self.job_dir / "logs" / f"{self.cluster.task_id}.log"

    @property
    def task_dir(self) -> Path:
        """The task's folder."""
        return self.job_dir / "tasks" / self.cluster.task_id


def run_here(task: ForegroundTask) -> None:
    """Run a task to its end; record the run's end if final.

    Raises:
        JobError: The task failed; the error's exit code is the task's.
        Interrupted: The user pressed Ctrl-C.
    """
    command = [sys.executable, "-m", _TASK_MODULE, "--spec", str(task.spec)]
    command += ["--parent", str(os.getpid())]
    environ = _environment(task)
    # A new session: Ctrl-C in the terminal reaches this process, which forwards it.
    process = subprocess.Popen(
        command,
        cwd=task.cwd,
        env=environ,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None  # stdout is PIPE
    output = Output(process.stdout, task.log, sys.stdout)
    with _passing_on(process) as interrupted:
        code = _wait_with_the_run(task, process) if task.serves else process.wait()
    output.finish()
    if code is None:
        return
    if interrupted.is_set():
        _end(task, JobStatus(job_id=task.run_id, state=JobState.STOPPED))
        raise interruption(task.workspace, task.run_id)
    failure = _failure(task, code)
    if failure is not None:
        _fail(task, failure, code)
    elif task.cluster.is_chief:
        _end(task, JobStatus(job_id=task.run_id, state=JobState.SUCCEEDED))


def _wait_with_the_run(task: ForegroundTask, process: subprocess.Popen[bytes]) -> int | None:
    """Wait for the process to exit, or terminate it with the run.

    Returns None if the run ended first.
    """
    events = EventReader(task.workspace.runs / task.run_id / FILE_NAME)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_POLL_S)
        if any(event["type"] == FINISH for event in events.read()):
            process.terminate()
            try:
                process.wait(_STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return None


def _environment(task: ForegroundTask) -> dict[str, str]:
    """Prepare the task's folder as an agent would; return the task's environment."""
    task.task_dir.mkdir(parents=True, exist_ok=True)
    for name in ("ready", "report.json", "progress", "alive"):
        (task.task_dir / name).unlink(missing_ok=True)
    cluster = task.cluster
    assignment = TaskAssignment(
        cluster={role: list(found) for role, found in cluster.tasks.items()},
        task=TaskEntry(type=cluster.role, index=cluster.index),
        generation=_next_generation(task.task_dir / "generation"),
        attempt=1,
    )
    outside = {"TF_CONFIG"} if cluster.role == "evaluator" else frozenset()
    inherited = {name: value for name, value in os.environ.items() if name not in outside}
    return {
        "PYTHONUNBUFFERED": "1",
        **inherited,
        **task.env,
        ENVIRONMENT_VARIABLE: encode(assignment),
        "TIMONEL_JOB_DIR": str(task.job_dir),
        "TIMONEL_TASK_DIR": str(task.task_dir),
    }


def _next_generation(path: Path) -> int:
    """Return this start's number, counting from 1 per task."""
    before = path.read_text() if path.exists() else "0"
    number = int(before) + 1 if before.strip().isdecimal() else 1
    write_text(path, str(number))
    return number


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[threading.Event]:
    """Forward signals while the task runs; the event is set on Ctrl-C."""
    interrupted = threading.Event()

    def leave(number: int, _frame: object) -> None:
        if number == signal.SIGINT:
            interrupted.set()
        process.terminate()
        timer.start()

    timer = _Once(_STOP_GRACE_S, process.kill)
    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # only the main thread can handle signals
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Once:
    """A timer that runs once, even if started repeatedly."""

    def __init__(self, seconds: float, action: object) -> None:
        self._timer = threading.Timer(seconds, action)  # type: ignore[arg-type] # a function
        self._timer.daemon = True
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._started = True
            self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()


def _failure(task: ForegroundTask, code: int) -> Failure | None:
    try:
        report = parse_report((task.task_dir / "report.json").read_text())
    except OSError:
        report = None
    exit_ = TaskExit(
        exit_code=code if code >= 0 else None, signal=-code if code < 0 else None, report=report
    )
    return fail(task.cluster.task_id, exit_)


def _fail(task: ForegroundTask, failure: Failure, code: int) -> None:
    """Raise a failure's error; end the run if it would recur.

    Raises:
        JobError: Always.
    """
    if failure.cause in _FINAL:
        status = JobStatus(
            job_id=task.run_id,
            state=JobState.FAILED,
            cause=failure.cause,
            message=failure.message,
            failed_task=failure.task_id,
        )
        _end(task, status)
        hint = "its traceback is above" if failure.reported else None
    else:
        hint = f"start it again with the same command, and {task.run_id} goes on where it was"
    error = JobError(f"{failure.task_id} ended as {failure.cause}: {failure.message}", hint=hint)
    error.exit_code = code if code >= 0 else 128 - code
    raise error


def _end(task: ForegroundTask, status: JobStatus) -> None:
    finish_run(task.workspace, task.run_id, status)
    mirror_in_background(task.workspace)

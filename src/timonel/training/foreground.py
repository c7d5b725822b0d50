"""One task of a job in this terminal: what an engine's agent does for it, and the end of its run.

The task is a process of its own, which the kernel kills should this one die. It gets what tasks of
engines get; its output is in its log and the terminal. SIGTERM is passed on: the task saves and
leaves with 75, and the run stays open, to be gone on with. Ctrl-C stops the run.
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
from timonel.engines.cluster import Assignment, TaskEntry, encode
from timonel.engines.failures import Failure, TaskExit, fail, parse_report
from timonel.errors import JobError
from timonel.storage import Workspace, write_text
from timonel.tracking.events import FILE_NAME, FINISH, EventReader
from timonel.tracking.mirror import mirror_in_background
from timonel.training.finish import finish_run, interruption
from timonel.training.terminal import Output
from timonel.training.worker.task.cluster import ENVIRONMENT_VARIABLE, Cluster

_TASK_MODULE = "timonel.training.worker"
_STOP_GRACE_S = 25.0
_POLL_S = 1.0
_FINAL = frozenset({FailureCause.USER_ERROR, FailureCause.OUT_OF_MEMORY})
"""What will be the same the next time."""


@dataclass(frozen=True)
class ForegroundTask:
    """A task that is to be run here.

    Attributes:
        workspace: Where its run is.
        run_id: Its run, whose id is the job's.
        spec: The document that says what is run.
        cluster: The job's tasks and this one's place among them.
        env: Its environment beside that of this process.
        cwd: The folder in which it runs.
        serves: Whether it serves the others and is to end when the run does.
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
        """The job's folder, which all its tasks share."""
        return self.workspace.jobs / self.run_id

    @property
    def log(self) -> Path:
        """The file with all that the task has written."""
        return self.job_dir / "logs" / f"{self.cluster.task_id}.log"

    @property
    def task_dir(self) -> Path:
        """The task's own folder."""
        return self.job_dir / "tasks" / self.cluster.task_id


def run_here(task: ForegroundTask) -> None:
    """Run a task to its end, and record the end of its run if this is it.

    Raises:
        JobError: The task failed; the error's exit code is the task's own.
        Interrupted: Ctrl-C came.
    """
    command = [sys.executable, "-m", _TASK_MODULE, "--spec", str(task.spec)]
    command += ["--parent", str(os.getpid())]
    environ = _environment(task)
    # A session of its own: Ctrl-C in the terminal is for this process, which tells the task.
    process = subprocess.Popen(
        command,
        cwd=task.cwd,
        env=environ,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None  # a pipe was asked for
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
    """Wait for the process, or end it when the run has its end; None then."""
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
    """Return the task's environment, and make its folder as an agent would."""
    task.task_dir.mkdir(parents=True, exist_ok=True)
    for name in ("ready", "report.json", "progress", "alive"):
        (task.task_dir / name).unlink(missing_ok=True)
    cluster = task.cluster
    assignment = Assignment(
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
    """Return how often this task was started, this time included."""
    before = path.read_text() if path.exists() else "0"
    number = int(before) + 1 if before.strip().isdecimal() else 1
    write_text(path, str(number))
    return number


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[threading.Event]:
    """Pass on signals while the task runs; the event tells whether Ctrl-C was among them."""
    interrupted = threading.Event()

    def leave(number: int, _frame: object) -> None:
        if number == signal.SIGINT:
            interrupted.set()
        process.terminate()
        timer.start()

    timer = _Once(_STOP_GRACE_S, process.kill)
    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # signals are the main thread's
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Once:
    """A timer that may be started again and again, and runs once."""

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
    """Raise what a failure means; the run ends with one that would come again.

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

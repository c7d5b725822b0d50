"""Run one task in this terminal, through an agent as on an engine.

The agent starts and watches the task, writes its log, and kills it with all its descendants once
this process is gone. SIGTERM stops the task, which saves and exits with 75, and the run stays open
to be continued. Ctrl-C stops the run, and a second one kills the task.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from timonel.engines import EXIT_RETRYABLE, FailureCause, JobSpec, JobState, JobStatus, LogLine
from timonel.engines.agent.messages import StartOrder, StopOrder, decode_event, encode, start_order
from timonel.engines.cluster import TaskAssignment
from timonel.engines.coordination.failures import Failure, TaskExit, fail
from timonel.engines.coordination.lifecycle import StartFailed, TaskExited
from timonel.engines.environment import TASK_DIR, role_environment, task_environment
from timonel.engines.logs import LogTail
from timonel.errors import EngineError, JobError
from timonel.processes.loop import Channel
from timonel.processes.tree import MARKER, kill_all, marked, own_identity
from timonel.storage import Workspace, write_text
from timonel.tracking.events import FILE_NAME, FINISH, EventReader
from timonel.tracking.mirrors.sidecar import mirror_in_background
from timonel.training.cluster import Cluster
from timonel.training.finish import finish_run, interruption
from timonel.training.terminal import is_noise

_POLL_S = 0.2
_AGENT_EXIT_S = 10.0
_FINAL = frozenset({FailureCause.USER_ERROR, FailureCause.OUT_OF_MEMORY})
"""Failures that would recur on a restart."""


@dataclass(frozen=True)
class ForegroundTask:
    """A task to run in this terminal.

    Attributes:
        workspace: Workspace of the run.
        spec: The job, whose id is the run's.
        cluster: The job's tasks and this task's position.
        serves: Whether the task serves others and should end with the run.
    """

    workspace: Workspace
    spec: JobSpec
    cluster: Cluster
    serves: bool = False

    @property
    def run_id(self) -> str:
        """The run."""
        return self.spec.job_id


def run_here(task: ForegroundTask) -> None:
    """Run a task to its end; record the run's end if final.

    Raises:
        JobError: The task failed; the error's exit code is the task's.
        EngineError: The task could not be started.
        Interrupted: The user pressed Ctrl-C.
    """
    with _collected_signals() as received:
        task_exit, was_over = _run_with_agent(task, received)
    if was_over:
        return
    if signal.SIGINT in received:
        _end(task, JobStatus(job_id=task.run_id, state=JobState.STOPPED))
        raise interruption(task.workspace, task.run_id)
    failure = fail(task.cluster.task_id, task_exit)
    if failure is not None:
        raise _error(task, failure, _exit_code(task_exit, failure, received))
    if task.cluster.is_chief:
        _end(task, JobStatus(job_id=task.run_id, state=JobState.SUCCEEDED))


@contextlib.contextmanager
def _collected_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list, which stays empty outside the main thread."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def collect(number: int, _frame: object) -> None:
        received.append(number)

    before = {number: signal.signal(number, collect) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_with_agent(task: ForegroundTask, received: list[int]) -> tuple[TaskExit, bool]:
    """Run a task; return its exit, and whether the run was over before.

    Args:
        task: The task.
        received: Signals that this process has received so far.
    """
    order = _start_order(task)
    stop = StopOrder(order.generation, order.attempt, task.spec.stop_grace_s)
    tail = LogTail(order.task_id, order.log, only_new=True)
    run_is_over = _end_of_run(task)
    was_over = False
    is_stopping = False
    with _agent(order) as channel:
        while (task_exit := _read_exit(channel)) is None and received.count(signal.SIGINT) < 2:
            was_over = was_over or run_is_over()
            if (received or was_over) and not is_stopping:
                is_stopping = True
                channel.send(encode(stop))
            _show(tail.read())
            select.select([channel], [], [], _POLL_S)
    _show(tail.read(to_end=True))
    return task_exit or TaskExit(signal=signal.SIGKILL), was_over


def _start_order(task: ForegroundTask) -> StartOrder:
    cluster, job_dir = task.cluster, task.workspace.jobs / task.run_id
    task_dir = job_dir / "tasks" / cluster.task_id
    task_dir.mkdir(parents=True, exist_ok=True)
    assignment = TaskAssignment(
        cluster={role: list(found) for role, found in cluster.tasks.items()},
        task={"type": cluster.role, "index": cluster.index},
        generation=_next_generation(task_dir / "generation"),
        attempt=1,
    )
    role = next(role for role in task.spec.roles if role.name == cluster.role)
    base = role_environment(task.spec, role)
    if cluster.role == "evaluator":
        base.pop("TF_CONFIG", None)  # it would join the cluster, whose tasks wait for each other
    return start_order(
        task.spec,
        assignment,
        env=task_environment(base, task_dir, assignment, str(own_identity())),
        cwd=task.spec.working_dir,
        task_dir=task_dir,
        log=job_dir / "logs" / f"{cluster.task_id}.log",
    )


def _next_generation(path: Path) -> int:
    """Return this start's number, counting from 1 per task."""
    before = path.read_text() if path.exists() else "0"
    number = int(before) + 1 if before.strip().isdecimal() else 1
    write_text(path, str(number))
    return number


def _end_of_run(task: ForegroundTask) -> Callable[[], bool]:
    """Return a function that tells whether the run has ended and the task should too."""
    events = EventReader(task.workspace.runs / task.run_id / FILE_NAME)
    return lambda: task.serves and any(event["type"] == FINISH for event in events.read())


@contextlib.contextmanager
def _agent(order: StartOrder) -> Iterator[Channel]:
    """Start an agent and its task; on leaving, kill what remains of them."""
    own_end, agent_end = socket.socketpair()
    # Not forked: this process may have threads, such as those of a notebook or of MPI.
    command = [sys.executable, "-P", "-m", "timonel.engines.agent", str(agent_end.fileno())]
    # Ctrl-C reaches the agent until it has a session of its own.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[agent_end.fileno()], env=order.env
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        agent_end.close()
    channel = Channel(own_end)
    try:
        channel.send(encode(order))
        yield channel
    finally:
        channel.close()
        try:
            process.wait(_AGENT_EXIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # Those of an agent that was killed.
        inside = f"{TASK_DIR}={order.task_dir}"
        kill_all(lambda: marked(order.env[MARKER], inside=inside))


def _read_exit(channel: Channel) -> TaskExit | None:
    """Return the task's exit once the agent has reported it, or has died.

    Raises:
        EngineError: The agent could not start the task.
    """
    for event in map(decode_event, channel.receive()):
        if isinstance(event, StartFailed):
            raise EngineError(event.message)
        if isinstance(event, TaskExited):
            return event.exit
    return None if channel.is_open else TaskExit(agent_lost=True)


def _show(lines: Iterable[LogLine]) -> None:
    for line in lines:
        # Losing the terminal must not end the task; its log has everything.
        with contextlib.suppress(OSError, ValueError):
            if not is_noise(line.text):
                print(line.text, flush=True)  # noqa: T201 - the task's own output


def _exit_code(task_exit: TaskExit, failure: Failure, received: list[int]) -> int:
    """Return this command's exit code, with that of the shell for signals."""
    if task_exit.agent_lost or (signal.SIGTERM in received and failure.cause not in _FINAL):
        return EXIT_RETRYABLE
    return task_exit.exit_code or 128 + (task_exit.signal or 0)


def _error(task: ForegroundTask, failure: Failure, exit_code: int) -> JobError:
    """Return a failure's error; end the run if it would recur."""
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
    error.exit_code = exit_code
    return error


def _end(task: ForegroundTask, status: JobStatus) -> None:
    finish_run(task.workspace, task.run_id, status)
    mirror_in_background(task.workspace)

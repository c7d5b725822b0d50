"""Classify failures of tasks, and find the root failure. Pure functions.

A task is classified by its exit code or signal, by the report it may have written, and by whether
the kernel killed it for lack of memory. When one task of a gang fails, others follow because they
lost their peer; `root_failure` finds the failure to show to the user.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from timonel.engines.base import EXIT_DONE, EXIT_RETRYABLE, FailureCause
from timonel.storage.atomic import escape_surrogates

_SHELL_SIGNAL_BASE = 128
# Sent by a program or the kernel to end a faulty process.
_CRASH_SIGNALS = frozenset(
    {
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGSYS,
    }
)
# Sent from outside to ask a process to exit.
_PREEMPTION_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})


@dataclass(frozen=True)
class TaskReport:
    """A task's own report of its failure, written before it exits."""

    cause: FailureCause
    message: str
    traceback: str | None = None


@dataclass(frozen=True)
class TaskExit:
    """Exit of a task.

    It ends by an exit code, a signal, or the loss of its agent.

    Attributes:
        exit_code: Exit code, if the task exited by itself.
        signal: Signal that ended the task.
        report: Report written by the task.
        oom_killed: Whether the kernel recorded an out-of-memory kill in the meantime.
        hung: Why the agent considered the task hung and killed it; None if it did not.
        agent_lost: Whether the agent died.
        progress: Last reported progress.
    """

    exit_code: int | None = None
    signal: int | None = None
    report: TaskReport | None = None
    oom_killed: bool = False
    hung: str | None = None
    agent_lost: bool = False
    progress: float | None = None


@dataclass(frozen=True)
class Failure:
    """Classified failure of a task.

    Attributes:
        task_id: Task ID.
        cause: Cause of the failure.
        message: One-line description.
        reported: Whether the task reported it itself.
        killed: Whether it got SIGKILL, which programs do not send to themselves.
        is_final: Whether a restart is ruled out, whatever the cause.
    """

    task_id: str
    cause: FailureCause
    message: str
    reported: bool = False
    killed: bool = False
    is_final: bool = False


def parse_report(text: str) -> TaskReport | None:
    """Parse a task's report; None if it is invalid.

    Its texts are safe to print: a user's error may contain lone surrogates.
    """
    try:
        value = json.loads(text)
        cause = FailureCause(value["cause"])
    except (ValueError, KeyError, TypeError):
        return None
    traceback = value.get("traceback")
    return TaskReport(
        cause=cause,
        message=escape_surrogates(str(value.get("message") or cause.value)),
        traceback=escape_surrogates(traceback) if isinstance(traceback, str) else None,
    )


def classify(task_exit: TaskExit, *, stopping: bool = False) -> FailureCause | None:
    """Return the cause of a task's failure, or None if it succeeded.

    Args:
        stopping: The generation was asked to stop, so an exit by signal or as retryable is
            expected. User errors, lack of memory and hangs still count: they may be why the other
            tasks had to stop.
    """
    if task_exit.exit_code == EXIT_DONE and not task_exit.agent_lost:
        return None
    own = _own_cause(task_exit)
    if stopping and own not in _counts_while_stopping(task_exit):
        return FailureCause.STOPPED
    return own


def fail(task_id: str, task_exit: TaskExit, *, stopping: bool = False) -> Failure | None:
    """Return the failure of ``task_id``, or None if it succeeded."""
    cause = classify(task_exit, stopping=stopping)
    if cause is None:
        return None
    return Failure(
        task_id,
        cause,
        _message(task_id, task_exit),
        reported=task_exit.report is not None,
        killed=_signal_of(task_exit) == signal.SIGKILL,
    )


def root_failure(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure that caused the others.

    Args:
        failures: Failures of a generation, in the order of detection.
    """
    return min(failures, key=_rank, default=None)


def _own_cause(task_exit: TaskExit) -> FailureCause:
    if task_exit.report is not None:
        # Someone outside asked it to stop, not its engine.
        is_stop = task_exit.report.cause is FailureCause.STOPPED
        return FailureCause.PREEMPTED if is_stop else task_exit.report.cause
    if task_exit.agent_lost or task_exit.hung is not None:
        return FailureCause.PREEMPTED if task_exit.agent_lost else FailureCause.HUNG
    if task_exit.exit_code == EXIT_RETRYABLE:
        return FailureCause.LOST_PEER
    number = _signal_of(task_exit)
    if number is None:
        return FailureCause.USER_ERROR
    if number == signal.SIGKILL and task_exit.oom_killed:
        return FailureCause.OUT_OF_MEMORY
    return FailureCause.PREEMPTED if number in _PREEMPTION_SIGNALS else FailureCause.CRASHED


def _counts_while_stopping(task_exit: TaskExit) -> frozenset[FailureCause]:
    if task_exit.report is not None:
        return frozenset({FailureCause.USER_ERROR, FailureCause.OUT_OF_MEMORY})
    return frozenset({FailureCause.OUT_OF_MEMORY, FailureCause.HUNG})


def _signal_of(task_exit: TaskExit) -> int | None:
    """Return an exit's signal, also if encoded as 128 + n."""
    if task_exit.signal is not None:
        return task_exit.signal
    number = (task_exit.exit_code or 0) - _SHELL_SIGNAL_BASE
    return number if number in _CRASH_SIGNALS | _PREEMPTION_SIGNALS else None


def _message(task_id: str, task_exit: TaskExit) -> str:
    if task_exit.report is not None:
        return task_exit.report.message
    if task_exit.agent_lost:
        return f"the agent of {task_id} died"
    if task_exit.hung is not None:
        return f"{task_id} hung: {task_exit.hung}"
    number = _signal_of(task_exit)
    if number is None:
        code = task_exit.exit_code
        why = ", which asks for a restart" if code == EXIT_RETRYABLE else ""
        return f"{task_id} ended with exit code {code}{why}"
    if number == signal.SIGKILL and task_exit.oom_killed:
        return f"{task_id} was killed by the kernel because memory ran out"
    return f"{task_id} was ended by signal {number} ({_signal_name(number)})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _rank(failure: Failure) -> int:
    """Rank failures by how likely they are the root.

    `min` keeps the first of equals.

    A bare non-zero exit code ranks like a crash: without a report, a script that lost its peer
    raises like any other.
    """
    if failure.cause is FailureCause.OUT_OF_MEMORY:
        return 0
    if failure.cause is FailureCause.USER_ERROR and failure.reported:
        return 0
    if failure.cause is FailureCause.LOST_PEER:
        return 2
    return 3 if failure.cause is FailureCause.STOPPED else 1

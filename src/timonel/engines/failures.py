"""Why a task failed, and which of several failures is the root: pure functions of plain values.

What a task leaves behind is its exit code or signal, a report it may have written, and whether the
kernel killed it for want of memory. When one task of a gang fails, others follow because they lost
their peer; `root_failure` finds the one to tell the user about.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from timonel.engines.base import EXIT_DONE, EXIT_RETRYABLE, FailureCause

_SHELL_SIGNAL_BASE = 128
# Signals by which a program or the kernel ends a process that went wrong.
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
# Signals by which something outside asks a process to leave.
_PREEMPTION_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})


@dataclass(frozen=True)
class TaskReport:
    """What a task said of its own failure before it ended."""

    cause: FailureCause
    message: str
    traceback: str | None = None


@dataclass(frozen=True)
class TaskExit:
    """How a task ended: an exit code, a signal, or the loss of the agent that watched it.

    Attributes:
        exit_code: Its exit code, if it ended by itself.
        signal: The signal that ended it.
        report: What it said before.
        oom_killed: Whether the kernel has killed for want of memory meanwhile.
        hung: Why its agent took it for hung and killed it, if it did.
        agent_lost: Whether its agent is gone.
        progress: How far it had come.
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
    """One task's failure, classified.

    Attributes:
        task_id: The task.
        cause: Why it failed.
        message: One line about it.
        reported: Whether the task said so itself.
        killed: Whether it got SIGKILL, which no program does to itself.
        is_final: Whether nothing may be started again, whatever the cause.
    """

    task_id: str
    cause: FailureCause
    message: str
    reported: bool = False
    killed: bool = False
    is_final: bool = False


def parse_report(text: str) -> TaskReport | None:
    """Return the report a task wrote, or None if what it wrote is no report."""
    try:
        value = json.loads(text)
        cause = FailureCause(value["cause"])
    except (ValueError, KeyError, TypeError):
        return None
    traceback = value.get("traceback")
    return TaskReport(
        cause=cause,
        message=str(value.get("message") or cause.value),
        traceback=traceback if isinstance(traceback, str) else None,
    )


def classify(task_exit: TaskExit, *, stopping: bool = False) -> FailureCause | None:
    """Return why a task ended without success, or None if it succeeded.

    Args:
        task_exit: How it ended.
        stopping: Its generation had been told to stop before, so that an end by signal or as
            retryable is what was asked for. The user's own error, a lack of memory and a hang
            still count: they may be the reason why the others had to be stopped.
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
    """Return the failure that the others followed from.

    Args:
        failures: The failures of one generation, in the order in which they were seen.
    """
    return min(failures, key=_rank, default=None)


def _own_cause(task_exit: TaskExit) -> FailureCause:
    if task_exit.report is not None:
        # Nobody had asked it to stop but somebody outside.
        asked = task_exit.report.cause is FailureCause.STOPPED
        return FailureCause.PREEMPTED if asked else task_exit.report.cause
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
    """Return the signal of an exit, also where a shell turned it into 128 + n."""
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
        return f"{task_id} ended with exit code {task_exit.exit_code}"
    if number == signal.SIGKILL and task_exit.oom_killed:
        return f"{task_id} was killed by the kernel for want of memory"
    return f"{task_id} was ended by signal {number} ({_signal_name(number)})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _rank(failure: Failure) -> int:
    """Order failures by how certainly they are a root; `min` keeps the first of equals.

    A bare non-zero exit code is no stronger than a crash: without a report, a script that lost its
    peer raises like any other.
    """
    if failure.cause is FailureCause.OUT_OF_MEMORY:
        return 0
    if failure.cause is FailureCause.USER_ERROR and failure.reported:
        return 0
    if failure.cause is FailureCause.LOST_PEER:
        return 2
    return 3 if failure.cause is FailureCause.STOPPED else 1

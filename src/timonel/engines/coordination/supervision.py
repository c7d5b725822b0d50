"""Run a job's coordinator over a launcher of its tasks, wherever they run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from timonel.engines.base import JobStatus
from timonel.engines.coordination.coordinator import advance
from timonel.engines.coordination.lifecycle import (
    Action,
    Begin,
    CoordinatorPhase,
    CoordinatorState,
    Event,
    KillTasks,
    StartGeneration,
    StartTask,
    StopTasks,
    Tick,
)

logger = logging.getLogger(__name__)


class TaskLauncher(Protocol):
    """Starts and stops the tasks of one job.

    The methods return at once and report by events: `TaskStarted`, `TaskReady` and, once all
    processes of a task are gone, `TaskExited`; `StartFailed` if a generation or a task cannot
    start.
    """

    def start(self, action: StartGeneration, reason: str | None) -> None:
        """Start a generation of tasks, each with an address of its own.

        Args:
            reason: Why the previous generation ended, passed on to tasks.
        """

    def restart(self, action: StartTask) -> None:
        """Restart one task at its address."""

    def stop(self, action: StopTasks) -> None:
        """Ask tasks to exit, and kill them after the grace period.

        A task that was never started or has exited is reported at once as exited with its agent
        lost.
        """

    def kill(self, action: KillTasks) -> None:
        """Kill tasks that ignore requests to exit.

        They never run later, even if they were about to start, and no `TaskExited` follows.
        """

    def close(self) -> None:
        """Stop the remaining tasks, and release all resources."""


def supervise(
    state: CoordinatorState,
    launcher: TaskLauncher,
    events: deque[Event],
    *,
    wait: Callable[[float | None], None],
    publish: Callable[[JobStatus], None],
    now: Callable[[], float],
) -> JobStatus:
    """Run a job until all its tasks have ended; return its outcome, which is not published yet.

    Args:
        state: The job; its status has the last generation if the job is resumed.
        events: Events to process, which the launcher and ``wait`` append.
        wait: Waits for events, up to a timeout in seconds; None: without a timeout.
        now: Returns the time in seconds since the epoch; it never goes back.
    """
    events.append(Begin())
    while True:
        while events:
            event = events.popleft()
            before = state.status
            state, actions = advance(state, event, now())
            for action in actions:
                logger.info("%s", action)
                _carry_out(launcher, action, state.status.message)
            has_ended = state.phase is CoordinatorPhase.ENDED
            if state.status != before and not has_ended:
                logger.info("%s -> %s", event, state.status.state)
                publish(state.status)
        if state.phase is CoordinatorPhase.ENDED:
            return state.status
        wake_at = state.wake_at
        wait(None if wake_at is None else max(0.0, wake_at - now()))
        events.append(Tick())


def _carry_out(launcher: TaskLauncher, action: Action, message: str | None) -> None:
    match action:
        case StartGeneration():
            launcher.start(action, message)
        case StartTask():
            launcher.restart(action)
        case StopTasks():
            launcher.stop(action)
        case KillTasks():
            launcher.kill(action)

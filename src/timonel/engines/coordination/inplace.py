"""Restart single tasks in place. Pure; see `coordinator`.

A task of a role with ``on_loss="restart-task"`` has its own restart budget and backoff. It keeps
its address and generation and gets the next attempt number, which identifies late messages of
earlier attempts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from timonel.engines.base import FailureCause, TaskStatus
from timonel.engines.coordination.failures import Failure
from timonel.engines.coordination.lifecycle import (
    Action,
    CoordinatorState,
    KillTasks,
    StartTask,
    Step,
    ending,
    role_of,
    task_of,
    with_task,
)
from timonel.engines.coordination.restarts import Loss, RestartHistory, decide
from timonel.engines.spec import RoleSpec


def record_loss(
    state: CoordinatorState,
    task: TaskStatus,
    failure: Failure,
    now: float,
    progress: float | None = None,
) -> tuple[CoordinatorState, Failure | None]:
    """Return the state after a loss, and the job's failure, if any.

    Args:
        state: State in which the task has ended.
        progress: Last progress that the task reported.
    """
    name = task.task_id
    state = replace(state, timers=without(state.timers, name))
    if failure.cause is FailureCause.USER_ERROR:
        return state, failure
    loss = Loss(
        failure.cause,
        progress,
        ran_s=now - state.ready_at.get(name, now),
        is_single_task=True,
        killed=failure.killed,
    )
    history = state.task_histories.get(name, RestartHistory())
    decision = decide(state.spec.restart, history, loss)
    if decision.retry:
        state = with_task(state, name, state="restarting")
        histories = {**state.task_histories, name: decision.history}
        timers = {**state.timers, name: now + decision.delay_s}
        return replace(state, task_histories=histories, timers=timers), None
    message = f"{failure.message} ({decision.reason})" if decision.reason else failure.message
    state = with_task(state, name, state="failed", message=message)
    if _can_continue_without(state, role_of(state, task)):
        return state, None
    return state, replace(failure, message=message, is_final=True)


def due(state: CoordinatorState, now: float) -> tuple[str, ...]:
    """Return the tasks whose timers have expired."""
    return tuple(name for name, time in state.timers.items() if time <= now)


def begin(state: CoordinatorState, task: TaskStatus, now: float) -> Step:
    """Start a task's next attempt."""
    attempt = task.attempt + 1
    fresh = TaskStatus(
        role=task.role,
        index=task.index,
        generation=task.generation,
        attempt=attempt,
        address=task.address,
        # Show the cause of the restart until the attempt has a status of its own.
        cause=task.cause,
        message=task.message,
    )
    state = with_task(state, task.task_id, **fresh.model_dump())
    timers = {**state.timers, task.task_id: now + state.spec.start_timeout_s}
    ready_at = without(state.ready_at, task.task_id)
    state = replace(state, timers=timers, ready_at=ready_at)
    return state, (StartTask(task.generation, task.task_id, attempt),)


def revive(state: CoordinatorState, role_names: Collection[str], now: float) -> CoordinatorState:
    """Restart tasks that failed for good, with new restart budgets."""
    for task in state.status.tasks:
        name, role = task.task_id, role_of(state, task)
        if task.state != "failed" or role.name not in role_names or role.on_loss != "restart-task":
            continue
        state = with_task(state, name, state="restarting")
        histories = {key: found for key, found in state.task_histories.items() if key != name}
        state = replace(state, task_histories=histories, timers={**state.timers, name: now})
    return state


def time_out(
    state: CoordinatorState, task: TaskStatus, now: float
) -> tuple[CoordinatorState, Action, Failure | None]:
    """Handle a task whose attempt was not ready in time as lost."""
    seconds = state.spec.start_timeout_s
    message = f"{task.task_id} did not report ready within {seconds:g} s"
    failure = Failure(task.task_id, FailureCause.START_TIMEOUT, message)
    state = with_task(state, task.task_id, state="failed", cause=failure.cause, message=message)
    state, of_job = record_loss(state, task, failure, now)
    return state, KillTasks(task.generation, (task.task_id,)), of_job


def cancel_restarts(state: CoordinatorState) -> CoordinatorState:
    """Stop tasks that wait for their next attempt."""
    for name in state.timers:
        task = task_of(state, name)
        if task is not None and task.state == "restarting":
            state = with_task(state, name, state="stopped")
    return replace(state, timers={})


def without(times: Mapping[str, float], name: str) -> dict[str, float]:
    """Return ``times`` without the entry of a task."""
    return {task: time for task, time in times.items() if task != name}


def _can_continue_without(state: CoordinatorState, role: RoleSpec) -> bool:
    if not any(task.state != "failed" for task in ending(state)):
        return False
    if not role.essential:
        return True
    left = [t for t in state.status.tasks if t.role == role.name and t.state != "failed"]
    return role.is_elastic and len(left) >= role.least

"""Query and update tasks in a coordinator's state. Pure."""

from __future__ import annotations

from dataclasses import replace

from timonel.engines.base import TaskStatus
from timonel.engines.lifecycle import State
from timonel.engines.spec import RoleSpec

GONE = frozenset({"succeeded", "failed", "stopped"})
"""States of tasks that have ended for good in their generation."""


def task_of(state: State, task_id: str) -> TaskStatus | None:
    """Return a task of the current generation, or None."""
    return next((task for task in state.status.tasks if task.task_id == task_id), None)


def role_of(state: State, task: TaskStatus) -> RoleSpec:
    """Return the role of a task."""
    return next(role for role in state.spec.roles if role.name == task.role)


def with_task(state: State, task_id: str, /, **update: object) -> State:
    """Return the state with fields of a task updated."""
    tasks = tuple(
        task.model_copy(update=update) if task.task_id == task_id else task
        for task in state.status.tasks
    )
    return with_status(state, tasks=tasks)


def with_status(state: State, /, **update: object) -> State:
    """Return the state with fields of its status updated."""
    return replace(state, status=state.status.model_copy(update=update))


def alive(state: State) -> tuple[str, ...]:
    """Return the tasks that have a process or are being started."""
    return tuple(
        task.task_id for task in state.status.tasks if task.state not in {*GONE, "restarting"}
    )


def not_ready(state: State) -> tuple[str, ...]:
    """Return the tasks that have not reported ready."""
    waited_for = {"pending", "starting", "restarting"}
    return tuple(task.task_id for task in state.status.tasks if task.state in waited_for)


def is_done(state: State) -> bool:
    """Whether all tasks that end by themselves have ended.

    In a running generation, the job continues without failed tasks.
    """
    return all(task.state in {"succeeded", "failed"} for task in ending(state))


def ending(state: State) -> tuple[TaskStatus, ...]:
    """Return the tasks whose end is the end of the job.

    The leader if its success suffices, else all tasks that do not serve others.
    """
    if state.spec.success == "leader":
        return tuple(task for task in state.status.tasks if task.task_id == state.spec.task_ids[0])
    serving = {role.name for role in state.spec.roles if role.is_serving}
    alone = len(serving) == len(state.spec.roles)
    return tuple(task for task in state.status.tasks if alone or task.role not in serving)

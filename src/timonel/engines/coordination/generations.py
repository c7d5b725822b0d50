"""Start, drain and conclude generations. Pure; see `coordinator`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from timonel.engines.base import FailureCause, JobState, RoleSize, TaskStatus
from timonel.engines.coordination import elastic, inplace
from timonel.engines.coordination.failures import Failure, root_failure
from timonel.engines.coordination.lifecycle import (
    CoordinatorPhase,
    CoordinatorState,
    KillTasks,
    StartGeneration,
    Step,
    StopTasks,
    alive,
    ending,
    is_done,
    not_ready,
    role_of,
    with_status,
    with_task,
)
from timonel.engines.coordination.restarts import Loss, RestartDecision, decide
from timonel.units import first_of, format_seconds

DRAIN_GRACE_S = 2.0
"""Grace period in seconds of tasks in a failed generation.

They lost a peer and cannot work together any more; the chief can finish writing a file, and the
task that failed first can print its traceback. A stop or a resize uses the job's own grace period.
"""
DRAIN_MARGIN_S = 5.0
"""Seconds beyond the grace period after which an agent counts as lost."""
_NAMED = 5
"""Most tasks that a message names: it goes into an environment variable of each task."""


def start(state: CoordinatorState, now: float) -> Step:
    """Start the next generation at the largest possible size."""
    generation = state.status.generation + 1
    slots = elastic.recover(state.slots, now)
    sizes = elastic.sizes(state.spec.roles, slots)
    tasks = tuple(
        TaskStatus(role=role.name, index=index, generation=generation)
        for role in state.spec.roles
        for index in range(sizes[role.name])
    )
    state = with_status(state, state=JobState.STARTING, generation=generation, tasks=tasks)
    state = replace(
        state,
        phase=CoordinatorPhase.STARTING,
        slots=slots,
        failures=(),
        resizing=False,
        progress=None,
        running_since=None,
        draining_since=None,
        ready_at={},
        timers={},
        deadline=now + state.spec.start_timeout_s,
    )
    return show_sizes(state), (StartGeneration(generation, sizes),)


def note_ready(state: CoordinatorState, now: float) -> Step:
    """Mark the generation as running once all tasks are ready."""
    if state.phase is CoordinatorPhase.STARTING and not not_ready(state):
        stops_at = state.status.stops_at
        if stops_at is None and state.spec.max_runtime_s is not None:
            stops_at = now + state.spec.max_runtime_s
        started_at = state.status.started_at or now
        state = with_status(state, state=JobState.RUNNING, started_at=started_at, stops_at=stops_at)
        state = replace(state, phase=CoordinatorPhase.RUNNING, deadline=None, running_since=now)
    return resize(state, now)


def resize(state: CoordinatorState, now: float) -> Step:
    """Drain a running generation if its size should change.

    Not while it starts, when there is nothing to save yet, and not once tasks have succeeded.
    """
    state = show_sizes(replace(state, slots=elastic.recover(state.slots, now)))
    requested = elastic.sizes(state.spec.roles, state.slots)
    present = sizes_of(state)
    ends = any(task.state == "succeeded" for task in ending(state))
    if state.phase is not CoordinatorPhase.RUNNING or ends or requested == present:
        return state, ()
    state = _with_resize(state, requested, present)
    return drain(replace(state, resizing=True), now)


def do_without(state: CoordinatorState, missing: Collection[str], now: float) -> Step:
    """Start a smaller generation instead of one that waits for these tasks, if there may be one."""
    if any(task.state != "pending" for task in state.status.tasks):
        return state, ()
    slots = _record_losses(state, missing, FailureCause.START_TIMEOUT, now)
    sizes, present = elastic.sizes(state.spec.roles, slots), sizes_of(state)
    if sizes == present:
        return state, ()
    return start(_with_resize(replace(state, slots=slots), sizes, present), now)


def time_out(state: CoordinatorState, now: float) -> Step:
    """Fail a generation whose tasks were not all ready in time."""
    late = not_ready(state)
    seconds = state.spec.start_timeout_s
    message = f"{first_of(late, _NAMED)} did not report ready within {seconds:g} s"
    failures = (Failure(name, FailureCause.START_TIMEOUT, message) for name in late)
    return fail(state, now, *failures)


def fail(state: CoordinatorState, now: float, *failures: Failure) -> Step:
    """Record failures and drain the generation."""
    return drain(replace(state, failures=(*state.failures, *failures)), now)


def drain(state: CoordinatorState, now: float) -> Step:
    """Stop all remaining tasks.

    If tasks have time to save their state, serving tasks stop after the others, which need them.
    """
    state = inplace.cancel_restarts(state)
    names = alive(state)
    if not names:
        return conclude(state, now)
    has_time = state.stop_cause is not None or (state.resizing and not state.failures)
    grace_s = state.spec.stop_grace_s
    if not has_time:
        grace_s = min(DRAIN_GRACE_S, grace_s)
    state = with_status(state, state=_drain_state(state, now))
    state = replace(
        state,
        phase=CoordinatorPhase.DRAINING,
        draining_since=state.draining_since or now,
        deadline=now + grace_s + DRAIN_MARGIN_S,
    )
    task_ids = (has_time and _not_serving(state)) or names
    return state, (StopTasks(state.status.generation, task_ids, grace_s, urgent=not has_time),)


def continue_drain(state: CoordinatorState, task: TaskStatus, now: float) -> Step:
    """Continue a drain after a task exited: serving tasks stop last."""
    names = alive(state)
    if not names:
        return conclude(state, now)
    if role_of(state, task).is_serving or _not_serving(state):
        return state, ()
    grace_s = min(DRAIN_GRACE_S, state.spec.stop_grace_s)
    state = replace(state, deadline=now + grace_s + DRAIN_MARGIN_S)
    return state, (StopTasks(state.status.generation, names, grace_s, urgent=True),)


def give_up(state: CoordinatorState, now: float) -> Step:
    """Kill the tasks whose agents did not respond."""
    names = alive(state)
    for name in names:
        state = with_task(state, name, state="stopped", cause=FailureCause.STOPPED)
    state, actions = conclude(state, now)
    return state, (KillTasks(state.status.generation, names), *actions)


def conclude(state: CoordinatorState, now: float) -> Step:
    """End or restart the job after all tasks of a generation exited."""
    if state.stop_cause is FailureCause.STOPPED:
        return _end(state, now, JobState.STOPPED, cause=FailureCause.STOPPED)
    root = root_failure(state.failures)
    if state.stop_cause is FailureCause.TIME_LIMIT and (
        root is None or state.phase is CoordinatorPhase.WAITING
    ):
        return _run_out_of_time(state, now)
    if root is not None:
        return _fail_or_restart(state, root, now)
    if state.resizing and not is_done(state):
        return start(with_status(state, cause=None, failed_task=None), now)
    return _end(state, now, JobState.SUCCEEDED, message=_describe_failed_tasks(state))


def _fail_or_restart(state: CoordinatorState, root: Failure, now: float) -> Step:
    state = _with_losses(state, root, now)
    decision = _decide(state, root, now)
    explained = {"cause": root.cause, "message": root.message, "failed_task": root.task_id}
    if not decision.retry:
        if decision.reason:
            explained["message"] = f"{root.message} ({decision.reason})"
        return _end(state, now, JobState.FAILED, **explained)
    if state.stop_cause is FailureCause.TIME_LIMIT:
        return _run_out_of_time(state, now)
    restarts = state.status.restarts + 1
    state = with_status(state, state=JobState.RESTARTING, restarts=restarts, **explained)
    state = replace(
        state,
        phase=CoordinatorPhase.WAITING,
        history=decision.history,
        # Time spent draining counts towards the delay.
        deadline=max(now, (state.draining_since or now) + decision.delay_s),
    )
    return state, ()


def sizes_of(state: CoordinatorState) -> dict[str, int]:
    """Return the size of each role when the current generation started."""
    roles = [task.role for task in state.status.tasks]
    return {role.name: roles.count(role.name) for role in state.spec.roles}


def show_sizes(state: CoordinatorState) -> CoordinatorState:
    """Publish the current and requested sizes of elastic roles."""
    present = sizes_of(state)
    shown = tuple(
        RoleSize.of(role, present[role.name], state.slots.requested.get(role.name))
        for role in state.spec.roles
        if role.is_elastic
    )
    return with_status(state, sizes=shown)


def _with_resize(
    state: CoordinatorState, sizes: Mapping[str, int], before: Mapping[str, int]
) -> CoordinatorState:
    message = f"continues with {sum(sizes.values())} tasks instead of {sum(before.values())}"
    return with_status(state, cause=None, failed_task=None, message=message)


def _not_serving(state: CoordinatorState) -> tuple[str, ...]:
    named = {task.task_id: task for task in state.status.tasks}
    return tuple(name for name in alive(state) if not role_of(state, named[name]).is_serving)


def _describe_failed_tasks(state: CoordinatorState) -> str | None:
    failed = [task for task in state.status.tasks if task.state == "failed"]
    if not failed:
        return None
    return "; ".join(f"continued without {task.task_id}: {task.message}" for task in failed)


def _with_losses(state: CoordinatorState, root: Failure, now: float) -> CoordinatorState:
    """Record the losses of elastic roles in a drained generation."""
    # Several tasks may time out together; otherwise only the root was lost.
    late = root.cause is FailureCause.START_TIMEOUT
    names = {f.task_id for f in state.failures if f is root or (late and f.cause is root.cause)}
    return replace(state, slots=_record_losses(state, names, root.cause, now))


def _record_losses(
    state: CoordinatorState, names: Collection[str], cause: FailureCause, now: float
) -> elastic.ElasticSlots:
    """Return the slots after tasks of a generation were lost together."""
    roles = [task.role for task in state.status.tasks if task.task_id in names]
    slots = state.slots
    for role in dict.fromkeys(roles):
        slots = elastic.record_loss(
            state.spec.roles,
            slots,
            role,
            cause,
            state.spec.restart,
            count=roles.count(role),
            ran_s=_ran_s(state, now),
            now=now,
        )
    return slots


def _drain_state(state: CoordinatorState, now: float) -> JobState:
    root = root_failure(state.failures)
    if state.stop_cause is not None:
        return JobState.STOPPING
    if root is None:
        return JobState.RESTARTING if state.resizing else JobState.STOPPING
    decision = _decide(_with_losses(state, root, now), root, now)
    return JobState.RESTARTING if decision.retry else JobState.STOPPING


def _decide(state: CoordinatorState, root: Failure, now: float) -> RestartDecision:
    if root.is_final:
        return RestartDecision(retry=False, history=state.history)
    loss = Loss(
        root.cause,
        state.progress,
        ran_s=_ran_s(state, now),
        killed=root.killed,
        next_start_differs=elastic.sizes(state.spec.roles, state.slots) != sizes_of(state),
    )
    return decide(state.spec.restart, state.history, loss)


def _ran_s(state: CoordinatorState, now: float) -> float:
    return 0.0 if state.running_since is None else now - state.running_since


def _run_out_of_time(state: CoordinatorState, now: float) -> Step:
    limit_s = state.spec.max_runtime_s or 0
    # A limit is what the user gave, not a measurement: 1s, not 1.0s.
    limit = f"{limit_s:g}s" if limit_s < 10 else format_seconds(limit_s)
    message = f"reached its maximum run time of {limit}"
    return _end(state, now, JobState.FAILED, cause=FailureCause.TIME_LIMIT, message=message)


def _end(state: CoordinatorState, now: float, job_state: JobState, **explained: object) -> Step:
    cleared: dict[str, object] = {"cause": None, "message": None, "failed_task": None}
    state = with_status(state, **{**cleared, **explained, "state": job_state, "ended_at": now})
    return replace(state, phase=CoordinatorPhase.ENDED, deadline=None, timers={}), ()

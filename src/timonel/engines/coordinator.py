"""The life of a job as a reducer: ``advance(state, event, now) -> (state, actions)``.

Pure: it starts nothing and reads no clock. An engine's shell feeds it what happened and carries
out the actions it returns; two shells with the same events make the same decisions.

    new ──Begin──> starting ──all ready──> running ──all done──┐
                      ^  └──────failure, timeout, stop─────────┤
                      │                                        v
                   waiting <───────────restart───────────── draining ──> ended
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from timonel.engines.base import FailureCause, JobState, JobStatus, TaskStatus
from timonel.engines.failures import Failure, fail, root_failure
from timonel.engines.lifecycle import (
    Begin,
    Event,
    KillTasks,
    Phase,
    StartFailed,
    StartGeneration,
    State,
    Step,
    StopRequested,
    StopTasks,
    TaskExited,
    TaskReady,
    TaskStarted,
    Tick,
)
from timonel.engines.restarts import decide
from timonel.engines.spec import JobSpec

DRAIN_GRACE_S = 5.0
"""Grace of tasks that are stopped because their generation is over; they cannot work without peers.
A stop by the user leaves them the job's own grace."""
DRAIN_MARGIN_S = 5.0
"""How long an agent may take over the grace before it is taken for lost itself."""
SERVING_ROLES = frozenset({"ps"})
"""Roles whose tasks never end by themselves; the coordinator ends them after the others."""

_GONE = frozenset({"succeeded", "failed", "stopped"})


def initial(spec: JobSpec, created_at: float) -> State:
    """Return the state of a job that was accepted."""
    return State(spec, JobStatus.of(spec, created_at))


def advance(state: State, event: Event, now: float) -> Step:
    """Return the state after ``event`` at the time ``now``, and what is to be done."""
    if state.phase is Phase.ENDED or _is_stale(state, event):
        return state, ()
    return _HANDLERS[type(event)](state, event, now)


def _is_stale(state: State, event: Event) -> bool:
    """Tell whether an event is from a generation that is over, or of a task that is gone."""
    if isinstance(event, Begin):
        return state.phase is not Phase.NEW
    if not isinstance(event, TaskStarted | TaskReady | TaskExited | StartFailed):
        return False
    if event.generation != state.status.generation or state.phase is Phase.WAITING:
        return True
    return not isinstance(event, StartFailed) and _task(state, event.task_id).state in _GONE


def _on_begin(state: State, _event: Begin, now: float) -> Step:
    return _start(state, now)


def _on_started(state: State, event: TaskStarted, _now: float) -> Step:
    address = event.address
    return _with_task(state, event.task_id, state="starting", pid=event.pid, address=address), ()


def _on_ready(state: State, event: TaskReady, now: float) -> Step:
    return _note_ready(_with_task(state, event.task_id, state="running"), now), ()


def _on_exited(state: State, event: TaskExited, now: float) -> Step:
    draining = state.phase is Phase.DRAINING
    failure = fail(event.task_id, event.exit, stopping=draining)
    state = _with_task(
        state,
        event.task_id,
        state=_end_of(failure),
        exit_code=event.exit.exit_code,
        signal=event.exit.signal,
        cause=failure.cause if failure else None,
        message=failure.message if failure else None,
    )
    if event.exit.progress is not None:
        state = replace(state, progress=max(event.exit.progress, state.progress or 0.0))
    if failure and failure.cause is not FailureCause.STOPPED:
        state = replace(state, failures=(*state.failures, failure))
    if draining:
        return _drained(state, now)
    if failure or _is_done(state):
        return _drain(state, now)
    return _note_ready(state, now), ()


def _on_start_failed(state: State, event: StartFailed, now: float) -> Step:
    failure = Failure(state.spec.job_id, FailureCause.ENGINE, event.message)
    return _drain(replace(state, failures=(*state.failures, failure)), now)


def _on_stop(state: State, _event: StopRequested, now: float) -> Step:
    if state.stop_requested:
        return state, ()
    state = replace(state, stop_requested=True)
    if state.phase in {Phase.NEW, Phase.WAITING}:
        return _conclude(state, now)
    # Also where a drain is under way with a shorter grace: the agents keep the first one.
    return _drain(state, now)


def _on_tick(state: State, _event: Tick, now: float) -> Step:
    if state.wake_at is None or now < state.wake_at:
        return state, ()
    if state.phase is Phase.WAITING:
        return _start(state, now)
    if state.phase is Phase.DRAINING:
        return _give_up(state, now)
    return _time_out(state, now)


_HANDLERS: dict[type, Callable[[State, Any, float], Step]] = {
    Begin: _on_begin,
    TaskStarted: _on_started,
    TaskReady: _on_ready,
    TaskExited: _on_exited,
    StartFailed: _on_start_failed,
    StopRequested: _on_stop,
    Tick: _on_tick,
}


def _start(state: State, now: float) -> Step:
    generation = state.status.generation + 1
    tasks = tuple(
        TaskStatus(role=task.role, index=task.index, generation=generation)
        for task in state.status.tasks
    )
    status = state.status.model_copy(
        update={"state": JobState.STARTING, "generation": generation, "tasks": tasks}
    )
    state = replace(
        state,
        status=status,
        phase=Phase.STARTING,
        failures=(),
        wake_at=now + state.spec.start_timeout_s,
    )
    return state, (StartGeneration(generation),)


def _note_ready(state: State, now: float) -> State:
    if state.phase is not Phase.STARTING or _not_ready(state):
        return state
    status = state.status.model_copy(
        update={"state": JobState.RUNNING, "started_at": state.status.started_at or now}
    )
    return replace(state, status=status, phase=Phase.RUNNING, wake_at=None)


def _time_out(state: State, now: float) -> Step:
    late = _not_ready(state)
    seconds = state.spec.start_timeout_s
    message = f"{', '.join(late)} did not report ready within {seconds:g} s"
    failure = Failure(late[0], FailureCause.START_TIMEOUT, message)
    return _drain(replace(state, failures=(*state.failures, failure)), now)


def _drain(state: State, now: float) -> Step:
    alive = _alive(state)
    if not alive:
        return _conclude(state, now)
    grace_s = min(DRAIN_GRACE_S, state.spec.stop_grace_s)
    if state.stop_requested:
        grace_s = state.spec.stop_grace_s
    status = state.status.model_copy(update={"state": _drain_state(state)})
    wake_at = now + grace_s + DRAIN_MARGIN_S
    state = replace(state, status=status, phase=Phase.DRAINING, wake_at=wake_at)
    return state, (StopTasks(status.generation, alive, grace_s),)


def _drain_state(state: State) -> JobState:
    root = root_failure(state.failures)
    if state.stop_requested or root is None:
        return JobState.STOPPING
    decision = decide(state.spec.restart, state.history, root.cause, state.progress)
    return JobState.RESTARTING if decision.retry else JobState.STOPPING


def _drained(state: State, now: float) -> Step:
    return (state, ()) if _alive(state) else _conclude(state, now)


def _give_up(state: State, now: float) -> Step:
    alive = _alive(state)
    for task_id in alive:
        state = _with_task(state, task_id, state="stopped", cause=FailureCause.STOPPED)
    state, actions = _conclude(state, now)
    return state, (KillTasks(state.status.generation, alive), *actions)


def _conclude(state: State, now: float) -> Step:
    """Decide what follows a generation of which no task is left."""
    if state.stop_requested:
        return _end(state, now, JobState.STOPPED, cause=FailureCause.STOPPED)
    root = root_failure(state.failures)
    if root is None:
        return _end(state, now, JobState.SUCCEEDED)
    decision = decide(state.spec.restart, state.history, root.cause, state.progress)
    explained = {"cause": root.cause, "message": root.message, "failed_task": root.task_id}
    if not decision.retry:
        if decision.reason:
            explained["message"] = f"{root.message} ({decision.reason})"
        return _end(state, now, JobState.FAILED, **explained)
    restarts = decision.history.restarts
    status = state.status.model_copy(
        update={"state": JobState.RESTARTING, "restarts": restarts, **explained}
    )
    return (
        replace(
            state,
            status=status,
            phase=Phase.WAITING,
            history=decision.history,
            wake_at=now + decision.delay_s,
        ),
        (),
    )


def _end(state: State, now: float, job_state: JobState, **explained: object) -> Step:
    cleared: dict[str, object] = {"cause": None, "message": None, "failed_task": None}
    status = state.status.model_copy(
        update={**cleared, **explained, "state": job_state, "ended_at": now}
    )
    return replace(state, status=status, phase=Phase.ENDED, wake_at=None), ()


def _end_of(failure: Failure | None) -> Literal["succeeded", "failed", "stopped"]:
    if failure is None:
        return "succeeded"
    return "stopped" if failure.cause is FailureCause.STOPPED else "failed"


def _is_done(state: State) -> bool:
    """Tell whether every task that ends by itself has ended."""
    serving = {role.name for role in state.spec.roles} & SERVING_ROLES
    alone = len(serving) == len(state.spec.roles)
    return all(
        task.state == "succeeded"
        for task in state.status.tasks
        if alone or task.role not in SERVING_ROLES
    )


def _alive(state: State) -> tuple[str, ...]:
    return tuple(task.task_id for task in state.status.tasks if task.state not in _GONE)


def _not_ready(state: State) -> tuple[str, ...]:
    return tuple(
        task.task_id for task in state.status.tasks if task.state in {"pending", "starting"}
    )


def _task(state: State, task_id: str) -> TaskStatus:
    return next(task for task in state.status.tasks if task.task_id == task_id)


def _with_task(state: State, task_id: str, /, **update: object) -> State:
    tasks = tuple(
        task.model_copy(update=update) if task.task_id == task_id else task
        for task in state.status.tasks
    )
    return replace(state, status=state.status.model_copy(update={"tasks": tasks}))

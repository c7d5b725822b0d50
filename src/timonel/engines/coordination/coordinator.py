"""State machine of a job: ``advance(state, event, now) -> (state, actions)``.

Pure: it starts nothing and reads no clock. The engine feeds it events and carries out the returned
actions; the same events always lead to the same decisions.

    new ──Begin──> starting ──all ready──> running ──all done──┐
                      ^  └───failure, timeout, stop, resize────┤
                      │                                        v
                   waiting <───────────restart───────────── draining ──> ended

While a job is starting or running, tasks of a role that restarts in place have a state machine of
their own, in `timonel.engines.coordination.inplace`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from timonel.engines.base import FailureCause, JobStatus, TaskState
from timonel.engines.coordination import elastic, generations, inplace
from timonel.engines.coordination.failures import Failure, fail
from timonel.engines.coordination.lifecycle import (
    GONE,
    Action,
    Begin,
    CoordinatorPhase,
    CoordinatorState,
    Event,
    ScaleRequested,
    StartFailed,
    Step,
    StopRequested,
    TaskExited,
    TaskReady,
    TasksMissing,
    TasksPending,
    TaskStarted,
    Tick,
    is_done,
    role_of,
    task_of,
    with_status,
    with_task,
)
from timonel.engines.spec import JobSpec


def initial(spec: JobSpec, created_at: float) -> CoordinatorState:
    """Return the initial state of an accepted job."""
    return CoordinatorState(spec, JobStatus.of(spec, created_at))


def advance(state: CoordinatorState, event: Event, now: float) -> Step:
    """Return the state after ``event``, and the actions to carry out."""
    if state.phase is CoordinatorPhase.ENDED or _is_stale(state, event):
        return state, ()
    return _HANDLERS[type(event)](state, event, now)


def _is_stale(state: CoordinatorState, event: Event) -> bool:
    """Whether an event is of an earlier generation, attempt or ended task."""
    if isinstance(event, Begin):
        return state.phase is not CoordinatorPhase.NEW
    if not isinstance(event, TaskStarted | TaskReady | TaskExited | StartFailed):
        return False
    if event.generation != state.status.generation or state.phase is CoordinatorPhase.WAITING:
        return True
    if isinstance(event, StartFailed):
        return False
    task = task_of(state, event.task_id)
    return task is None or task.attempt != event.attempt or task.state in {*GONE, "restarting"}


def _on_begin(state: CoordinatorState, _event: Begin, now: float) -> Step:
    return generations.start(state, now)


def _on_started(state: CoordinatorState, event: TaskStarted, _now: float) -> Step:
    address = event.address
    return with_task(state, event.task_id, state="starting", pid=event.pid, address=address), ()


def _on_ready(state: CoordinatorState, event: TaskReady, now: float) -> Step:
    name = event.task_id
    state = with_task(state, name, state="running")
    ready_at = {**state.ready_at, name: now}
    state = replace(state, ready_at=ready_at, timers=inplace.without(state.timers, name))
    return generations.note_ready(state, now)


def _on_exited(state: CoordinatorState, event: TaskExited, now: float) -> Step:
    draining, task = state.phase is CoordinatorPhase.DRAINING, task_of(state, event.task_id)
    if task is None:
        return state, ()
    failure = fail(event.task_id, event.exit, stopping=draining)
    state = _with_exit(state, event, failure)
    if draining:
        if failure and failure.cause is not FailureCause.STOPPED:
            state = replace(state, failures=(*state.failures, failure))
        return generations.continue_drain(state, task, now)
    if failure and role_of(state, task).on_loss == "restart-task":
        state, failure = inplace.record_loss(state, task, failure, now, event.exit.progress)
    return _continue(state, failure, now)


def _on_start_failed(state: CoordinatorState, event: StartFailed, now: float) -> Step:
    failure = Failure(state.spec.job_id, FailureCause.ENGINE, event.message)
    return generations.fail(state, now, failure)


def _on_pending(state: CoordinatorState, event: TasksPending, now: float) -> Step:
    if state.phase is not CoordinatorPhase.STARTING or event.generation != state.status.generation:
        return state, ()
    state = with_status(state, message=event.message)
    return replace(state, deadline=now + state.spec.start_timeout_s), ()


def _on_missing(state: CoordinatorState, event: TasksMissing, now: float) -> Step:
    if state.phase is not CoordinatorPhase.STARTING or event.generation != state.status.generation:
        return state, ()
    return generations.do_without(state, event.task_ids, now)


def _on_stop(state: CoordinatorState, _event: StopRequested, now: float) -> Step:
    if state.stop_cause is not None:
        return state, ()
    return _stop(state, FailureCause.STOPPED, now)


def _stop(state: CoordinatorState, cause: FailureCause, now: float) -> Step:
    state = replace(state, stop_cause=cause)
    if state.phase in {CoordinatorPhase.NEW, CoordinatorPhase.WAITING}:
        return generations.conclude(state, now)
    # Also during a drain with a shorter grace period: agents keep the first one.
    return generations.drain(state, now)


def _on_scale(state: CoordinatorState, event: ScaleRequested, now: float) -> Step:
    slots = elastic.request_sizes(state.spec.roles, state.slots, event.sizes)
    state, actions = generations.resize(replace(state, slots=slots), now)
    if state.phase is CoordinatorPhase.RUNNING:
        # Asking for the current size again revives tasks that failed for good.
        state = inplace.revive(state, event.sizes, now)
    return state, actions


def _on_tick(state: CoordinatorState, _event: Tick, now: float) -> Step:
    stops_at = state.status.stops_at
    if stops_at is not None and now >= stops_at and state.can_time_out:
        return _stop(state, FailureCause.TIME_LIMIT, now)
    actions: tuple[Action, ...] = ()
    for name in inplace.due(state, now):
        if state.phase not in {CoordinatorPhase.STARTING, CoordinatorPhase.RUNNING}:
            break
        state, more = _on_timer(state, name, now)
        actions += more
    if state.deadline is None or now < state.deadline:
        state, more = generations.resize(state, now)
    elif state.phase is CoordinatorPhase.WAITING:
        state, more = generations.start(state, now)
    elif state.phase is CoordinatorPhase.DRAINING:
        state, more = generations.give_up(state, now)
    else:
        state, more = generations.time_out(state, now)
    return state, actions + more


def _on_timer(state: CoordinatorState, name: str, now: float) -> Step:
    """Handle a task's timer: start its next attempt, or time it out."""
    task = task_of(state, name)
    if task is None:
        return state, ()
    if task.state == "restarting":
        return inplace.begin(state, task, now)
    state, kill, failure = inplace.time_out(state, task, now)
    state, more = _continue(state, failure, now)
    return state, (kill, *more)


def _continue(state: CoordinatorState, failure: Failure | None, now: float) -> Step:
    """Fail, drain or continue the generation after a task ended."""
    if failure is not None:
        return generations.fail(state, now, failure)
    if is_done(state):
        return generations.drain(state, now)
    return generations.note_ready(state, now)


def _with_exit(
    state: CoordinatorState, event: TaskExited, failure: Failure | None
) -> CoordinatorState:
    state = with_task(
        state,
        event.task_id,
        state=_final_state(failure),
        exit_code=event.exit.exit_code,
        signal=event.exit.signal,
        cause=failure.cause if failure else None,
        message=failure.message if failure else None,
    )
    if event.exit.progress is None:
        return state
    return replace(state, progress=max(event.exit.progress, state.progress or 0.0))


def _final_state(failure: Failure | None) -> TaskState:
    if failure is None:
        return "succeeded"
    return "stopped" if failure.cause is FailureCause.STOPPED else "failed"


_HANDLERS: dict[type, Callable[[CoordinatorState, Any, float], Step]] = {
    Begin: _on_begin,
    TaskStarted: _on_started,
    TaskReady: _on_ready,
    TaskExited: _on_exited,
    StartFailed: _on_start_failed,
    TasksPending: _on_pending,
    TasksMissing: _on_missing,
    StopRequested: _on_stop,
    ScaleRequested: _on_scale,
    Tick: _on_tick,
}

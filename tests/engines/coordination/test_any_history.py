"""Whatever happens in whatever order: what holds of every job, and that each one ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.coordination.job import Job
from tests.engines.coordination.strategies import specs, task_exits
from timonel.engines.base import JobState
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.coordination.lifecycle import (
    Begin,
    CoordinatorPhase,
    Event,
    ScaleRequested,
    StartFailed,
    StartGeneration,
    StartTask,
    StopRequested,
    TaskExited,
    TaskReady,
    TasksMissing,
    TasksPending,
    TaskStarted,
    Tick,
)
from timonel.engines.spec import JobSpec, RestartPolicy

DONE = TaskExit(exit_code=0)


@pytest.mark.slow
@given(st.data(), specs())
@settings(max_examples=40, deadline=None)
def test_any_history_keeps_the_invariants_and_ends(data: st.DataObject, spec: JobSpec) -> None:
    job = Job(spec)
    job.tell(Begin())
    resizes = 0
    for _ in range(data.draw(st.integers(0, 25))):
        job.now += data.draw(st.floats(0, 50))
        was, generation, event = job.state.resizing, job.generation, data.draw(_events(job))
        job.tell(event)
        is_smaller = isinstance(event, TasksMissing) and job.generation > generation
        resizes += is_smaller or (job.state.resizing and not was)
        _check(job, resizes)
    # Whatever happened, a stop and time bring it to its end.
    job.tell(StopRequested())
    for _ in range(2):
        job.now += 1000
        job.tell(Tick())
    assert job.state.status.state.is_final
    ended = job.state
    job.tell(*(TaskExited(name, job.generation, DONE) for name in spec.task_ids), Begin(), Tick())
    assert job.state == ended


@pytest.mark.slow
@given(st.data(), specs())
@settings(max_examples=40, deadline=None)
def test_nothing_old_is_believed(data: st.DataObject, spec: JobSpec) -> None:
    job = Job(spec)
    job.tell(Begin())
    for _ in range(data.draw(st.integers(1, 15))):
        job.now += data.draw(st.floats(0, 50))
        job.tell(data.draw(_events(job, current=True)))
    before = job.state
    for task in before.status.tasks:
        for generation, attempt in ((task.generation - 1, 1), (task.generation, task.attempt - 1)):
            job.tell(
                TaskStarted(task.task_id, generation, 9, None, attempt),
                TaskReady(task.task_id, generation, attempt),
                TaskExited(task.task_id, generation, data.draw(task_exits), attempt),
            )
    job.tell(StartFailed(job.generation - 1, "broken"))
    assert job.state == before


@given(st.data(), specs())
@settings(max_examples=40, deadline=None)
def test_a_job_whose_tasks_always_end_has_an_end(data: st.DataObject, spec: JobSpec) -> None:
    """Nothing gets further, so nothing is forgiven, and every budget is used up in the end."""
    job = Job(spec)
    job.tell(Begin())
    # Each task may use up a budget of its own in each generation, and each loss may rest a slot.
    rounds = (spec.restart.max_restarts + 2) * (spec.restart.max_restarts + 2) * (spec.size + 2) * 4
    for _ in range(rounds):
        if job.state.status.state.is_final:
            break
        for task in job.state.status.tasks:
            if data.draw(st.booleans()):
                job.ready(task.task_id)
            job.exit(task.task_id, data.draw(task_exits.filter(lambda e: e.progress is None)))
        if job.state.wake_at is not None:
            job.wait()
    assert job.state.status.state.is_final


def _events(job: Job, *, current: bool = False) -> st.SearchStrategy[Event]:
    tasks = job.state.status.tasks
    names = st.sampled_from([*(task.task_id for task in tasks), job.spec.task_ids[-1]])
    now, latest = job.generation, max((task.attempt for task in tasks), default=1)
    generations = st.just(now) if current else st.integers(max(1, now - 1), now)
    attempts = st.integers(1, latest)
    return st.one_of(
        st.builds(TaskStarted, names, generations, st.just(7), attempt=attempts),
        st.builds(TaskReady, names, generations, attempts),
        st.builds(TaskExited, names, generations, task_exits, attempts),
        st.builds(StartFailed, generations, st.just("broken")),
        st.builds(TasksPending, generations, st.just("waiting")),
        st.builds(TasksMissing, generations, st.tuples(names)),
        st.just(Tick()),
        st.builds(
            ScaleRequested,
            st.dictionaries(st.sampled_from(["worker", "ps"]), st.integers(0, 4), max_size=2),
        ),
        st.just(StopRequested()),
    )


def _check(job: Job, resizes: int) -> None:
    state, status, spec = job.state, job.state.status, job.spec
    started = [a for a in job.actions if isinstance(a, StartGeneration)]
    assert [a.generation for a in started] == list(range(1, status.generation + 1))
    for action in started:
        assert set(action.sizes) == {role.name for role in spec.roles}
        assert all(role.least <= action.sizes[role.name] <= role.replicas for role in spec.roles)
    assert status.generation <= status.restarts + 1 + resizes
    if not _may_forgive(spec.restart, job):
        assert status.restarts <= spec.restart.max_restarts
    _check_attempts(job)
    assert status.state.is_final == (state.phase is CoordinatorPhase.ENDED)
    if state.phase in {CoordinatorPhase.WAITING, CoordinatorPhase.ENDED}:
        assert all(task.state in {"succeeded", "failed", "stopped"} for task in status.tasks)
    if status.state is JobState.FAILED:
        assert status.cause is not None
        assert status.message
    if status.state is JobState.SUCCEEDED:
        assert status.cause is None


def _check_attempts(job: Job) -> None:
    last: dict[tuple[int, str], int] = {}
    in_place = {role.name for role in job.spec.roles if role.on_loss == "restart-task"}
    for action in job.actions:
        if isinstance(action, StartTask):
            key = (action.generation, action.task_id)
            assert action.attempt == last.get(key, 1) + 1
            assert action.task_id.rpartition("-")[0] in in_place
            last[key] = action.attempt
    for task in job.state.status.tasks:
        assert task.attempt == last.get((task.generation, task.task_id), 1)


def _may_forgive(policy: RestartPolicy, job: Job) -> bool:
    return job.now - 1000.0 >= policy.reset_after_s

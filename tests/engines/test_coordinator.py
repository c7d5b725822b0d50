from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.strategies import specs, task_exits
from timonel.engines.base import FailureCause, JobState
from timonel.engines.coordinator import advance, initial
from timonel.engines.failures import TaskExit, TaskReport
from timonel.engines.generations import DRAIN_GRACE_S, DRAIN_MARGIN_S
from timonel.engines.lifecycle import (
    Action,
    Begin,
    Event,
    KillTasks,
    Phase,
    StartFailed,
    StartGeneration,
    State,
    StopRequested,
    StopTasks,
    TaskExited,
    TaskReady,
    TaskStarted,
    Tick,
)
from timonel.engines.spec import JobSpec, RestartPolicy, RoleSpec

DONE = TaskExit(exit_code=0)
LOST_PEER = TaskExit(exit_code=75)
ENDED_BY_TERM = TaskExit(signal=15)
USER_ERROR = TaskExit(exit_code=1, report=TaskReport(FailureCause.USER_ERROR, "no such column"))


@dataclass
class Job:
    """A coordinator with a clock of its own."""

    spec: JobSpec
    now: float = 1000.0
    actions: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state: State = initial(self.spec, self.now)

    def tell(self, *events: Event) -> list[Action]:
        new: list[Action] = []
        for event in events:
            self.state, actions = advance(self.state, event, self.now)
            new.extend(actions)
        self.actions.extend(new)
        return new

    @property
    def generation(self) -> int:
        return self.state.status.generation

    def all_ready(self) -> None:
        for name in self.spec.task_ids:
            self.tell(TaskStarted(name, self.generation, 7), TaskReady(name, self.generation))

    def exit(self, name: str, task_exit: TaskExit) -> list[Action]:
        return self.tell(TaskExited(name, self.generation, task_exit))


def spec_of(*roles: tuple[str, int], **fields: object) -> JobSpec:
    return JobSpec.model_validate(
        {
            "job_id": "job",
            "module": "module",
            "roles": [RoleSpec.model_validate({"name": n, "replicas": r}) for n, r in roles],
            "working_dir": "/",
            "job_dir": "/jobs/job",
            **fields,
        }
    )


@pytest.fixture
def job() -> Job:
    return Job(spec_of(("worker", 2), restart=RestartPolicy(max_restarts=2, backoff_s=8)))


def test_a_job_runs_once_all_tasks_are_ready(job: Job) -> None:
    assert job.tell(Begin()) == [StartGeneration(1, {"worker": 2})]
    assert job.state.status.state is JobState.STARTING
    job.tell(TaskStarted("worker-0", 1, 7), TaskReady("worker-0", 1))
    assert job.state.status.state is JobState.STARTING
    job.tell(TaskStarted("worker-1", 1, 8), TaskReady("worker-1", 1))
    assert job.state.status.state is JobState.RUNNING
    assert job.state.wake_at is None


def test_a_lost_task_restarts_all_after_a_delay(job: Job) -> None:
    job.tell(Begin())
    job.all_ready()
    assert job.exit("worker-0", LOST_PEER) == [
        StopTasks(1, ("worker-1",), DRAIN_GRACE_S, urgent=True)
    ]
    assert job.state.status.state is JobState.RESTARTING
    assert job.exit("worker-1", ENDED_BY_TERM) == []
    assert job.state.wake_at == job.now + 8
    assert job.tell(Tick()) == []
    job.now += 8
    assert job.tell(Tick()) == [StartGeneration(2, {"worker": 2})]
    assert job.state.status.restarts == 1
    assert {task.generation for task in job.state.status.tasks} == {2}


def test_a_users_error_seen_while_draining_is_the_root(job: Job) -> None:
    job.tell(Begin())
    job.all_ready()
    job.exit("worker-0", LOST_PEER)
    job.exit("worker-1", USER_ERROR)
    status = job.state.status
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.USER_ERROR)
    assert (status.failed_task, status.message) == ("worker-1", "no such column")


def test_events_of_an_earlier_generation_count_for_nothing(job: Job) -> None:
    job.tell(Begin())
    job.all_ready()
    job.exit("worker-0", LOST_PEER)
    job.exit("worker-1", ENDED_BY_TERM)
    job.now += 8
    job.tell(Tick())
    before = job.state
    job.tell(TaskReady("worker-0", 1), TaskExited("worker-0", 1, USER_ERROR), StartFailed(1, "?"))
    assert job.state == before


def test_parameter_servers_end_with_the_workers() -> None:
    job = Job(spec_of(("chief", 1), ("worker", 1), ("ps", 1), stop_grace_s=2))
    job.tell(Begin())
    job.all_ready()
    job.exit("worker-0", DONE)
    assert job.exit("chief-0", DONE) == [StopTasks(1, ("ps-0",), 2.0, urgent=True)]
    job.exit("ps-0", ENDED_BY_TERM)
    assert job.state.status.state is JobState.SUCCEEDED


def test_parameter_servers_alone_end_by_themselves() -> None:
    job = Job(spec_of(("ps", 1)))
    job.tell(Begin())
    job.exit("ps-0", DONE)
    assert job.state.status.state is JobState.SUCCEEDED


def test_the_evaluator_is_waited_for() -> None:
    job = Job(spec_of(("chief", 1), ("evaluator", 1)))
    job.tell(Begin())
    job.all_ready()
    assert job.exit("chief-0", DONE) == []
    job.exit("evaluator-0", DONE)
    assert job.state.status.state is JobState.SUCCEEDED


def test_agents_that_do_not_answer_are_given_up(job: Job) -> None:
    job.tell(Begin())
    job.all_ready()
    job.tell(StopRequested())
    job.now += job.spec.stop_grace_s + DRAIN_MARGIN_S
    assert job.tell(Tick()) == [KillTasks(1, ("worker-0", "worker-1"))]
    assert job.state.status.state is JobState.STOPPED


def test_a_start_that_takes_too_long_is_named(job: Job) -> None:
    job.tell(Begin(), TaskStarted("worker-0", 1, 7), TaskReady("worker-0", 1))
    job.now += job.spec.start_timeout_s
    stopped = job.tell(Tick())
    assert stopped == [StopTasks(1, ("worker-0", "worker-1"), DRAIN_GRACE_S, urgent=True)]
    for name in job.spec.task_ids:
        job.exit(name, ENDED_BY_TERM)
    assert job.state.status.cause is FailureCause.START_TIMEOUT
    assert job.state.status.failed_task == "worker-1"


def test_an_engine_that_cannot_start_fails_the_job(job: Job) -> None:
    job.tell(Begin(), StartFailed(1, "no ports"))
    for name in job.spec.task_ids:
        job.exit(name, TaskExit(agent_lost=True))
    status = job.state.status
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.ENGINE)
    assert status.message == "no ports"


@given(st.data(), specs())
@settings(max_examples=60, deadline=None)
def test_any_history_keeps_the_invariants_and_ends(data: st.DataObject, spec: JobSpec) -> None:
    job = Job(spec)
    job.tell(Begin())
    for _ in range(data.draw(st.integers(0, 25))):
        job.now += data.draw(st.floats(0, 50))
        job.tell(data.draw(_events(spec, job.generation)))
        _check(job)
    # Whatever happened, a stop and time bring it to its end.
    job.tell(StopRequested())
    for _ in range(2):
        job.now += 1000
        job.tell(Tick())
    assert job.state.status.state.is_final
    ended = job.state
    job.tell(*(TaskExited(name, job.generation, DONE) for name in spec.task_ids), Begin(), Tick())
    assert job.state == ended


def _events(spec: JobSpec, generation: int) -> st.SearchStrategy[Event]:
    names = st.sampled_from(spec.task_ids)
    generations = st.integers(max(1, generation - 1), generation)
    return st.one_of(
        st.builds(TaskStarted, names, generations, st.just(7)),
        st.builds(TaskReady, names, generations),
        st.builds(TaskExited, names, generations, task_exits),
        st.builds(StartFailed, generations, st.just("broken")),
        st.just(Tick()),
        st.just(StopRequested()),
    )


def _check(job: Job) -> None:
    state, status = job.state, job.state.status
    started = [a.generation for a in job.actions if isinstance(a, StartGeneration)]
    assert started == list(range(1, status.generation + 1))
    assert status.restarts <= job.spec.restart.max_restarts
    assert status.generation <= status.restarts + 1
    assert status.state.is_final == (state.phase is Phase.ENDED)
    if state.phase in {Phase.WAITING, Phase.ENDED}:
        assert all(task.state in {"succeeded", "failed", "stopped"} for task in status.tasks)
    if status.state is JobState.FAILED:
        assert status.cause is not None
        assert status.message
    if status.state is JobState.SUCCEEDED:
        assert status.cause is None

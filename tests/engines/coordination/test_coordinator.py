from __future__ import annotations

import pytest

from tests.engines.coordination.job import Job, spec_of
from timonel.engines.base import FailureCause, JobState
from timonel.engines.coordination.failures import TaskExit, TaskReport
from timonel.engines.coordination.generations import DRAIN_GRACE_S, DRAIN_MARGIN_S
from timonel.engines.coordination.lifecycle import (
    Begin,
    KillTasks,
    StartFailed,
    StartGeneration,
    StopRequested,
    StopTasks,
    TaskExited,
    TaskReady,
    TasksPending,
    TaskStarted,
    Tick,
)
from timonel.engines.spec import RestartPolicy

DONE = TaskExit(exit_code=0)
LOST_PEER = TaskExit(exit_code=75)
ENDED_BY_TERM = TaskExit(signal=15)
USER_ERROR = TaskExit(exit_code=1, report=TaskReport(FailureCause.USER_ERROR, "no such column"))


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


def test_a_lost_task_restarts_all_at_once(job: Job) -> None:
    job.tell(Begin())
    job.all_ready()
    assert job.exit("worker-0", LOST_PEER) == [
        StopTasks(1, ("worker-1",), DRAIN_GRACE_S, urgent=True)
    ]
    assert job.state.status.state is JobState.RESTARTING
    assert job.exit("worker-1", ENDED_BY_TERM) == []
    assert job.state.wake_at == job.now
    assert job.tell(Tick()) == [StartGeneration(2, {"worker": 2})]
    assert job.state.status.restarts == 1
    assert {task.generation for task in job.state.status.tasks} == {2}


def test_the_delay_of_the_next_one_runs_while_the_others_end(job: Job) -> None:
    job.run()
    job.exit_all(LOST_PEER)
    job.wait()
    job.all_ready()
    job.exit("worker-0", LOST_PEER)
    failed_at = job.now
    job.now += 3
    job.exit("worker-1", ENDED_BY_TERM)
    assert job.state.wake_at == failed_at + 8
    assert job.tell(Tick()) == []
    assert job.wait() == [StartGeneration(3, {"worker": 2})]


@pytest.mark.parametrize(("progress", "delay_s"), [(None, 8), (10, 8), (11, 0)])
def test_a_job_that_made_progress_restarts_at_once(
    job: Job, progress: float | None, delay_s: float
) -> None:
    job.run()
    job.exit("worker-0", TaskExit(exit_code=75, progress=10))
    job.exit("worker-1", TaskExit(exit_code=75, progress=9))  # behind worker-0
    job.wait()
    job.all_ready()
    job.exit_all(TaskExit(exit_code=75, progress=progress))
    assert job.state.wake_at == job.now + delay_s


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


def test_parameter_servers_are_there_until_the_others_have_saved() -> None:
    job = Job(spec_of(("chief", 1), ("worker", 1), ("ps", 2), stop_grace_s=20))
    job.tell(Begin())
    job.all_ready()
    assert job.tell(StopRequested()) == [StopTasks(1, ("chief-0", "worker-0"), 20)]
    assert job.exit("worker-0", ENDED_BY_TERM) == []
    assert job.exit("ps-1", LOST_PEER) == []
    assert job.exit("chief-0", ENDED_BY_TERM) == [
        StopTasks(1, ("ps-0",), DRAIN_GRACE_S, urgent=True)
    ]
    job.exit("ps-0", ENDED_BY_TERM)
    assert job.state.status.state is JobState.STOPPED


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


@pytest.mark.slow
def test_of_many_tasks_that_are_late_some_are_named() -> None:
    job = Job(spec_of(("worker", 1000)))
    job.tell(Begin())
    job.now += job.spec.start_timeout_s
    job.tell(Tick())
    for name in job.spec.task_ids:
        job.exit(name, ENDED_BY_TERM)
    message = job.state.status.message
    assert message is not None
    assert message.startswith("worker-0, worker-1, worker-2, worker-3, worker-4 and 995 more did ")


def test_tasks_without_a_machine_do_not_time_out(job: Job) -> None:
    job.tell(Begin())
    for _ in range(3):
        job.now += job.spec.start_timeout_s - 1
        assert job.tell(TasksPending(1, "waiting for 1 of 2 pods"), Tick()) == []
        assert job.state.status.message == "waiting for 1 of 2 pods"
    job.tell(TasksPending(1, None))
    assert (job.state.status.state, job.state.status.message) == (JobState.STARTING, None)
    job.now += job.spec.start_timeout_s
    assert job.tell(Tick()) != []
    assert job.tell(TasksPending(1, "late")) == []
    assert job.state.status.message != "late"


def test_a_job_fails_after_its_maximum_run_time_with_time_to_save() -> None:
    restart = RestartPolicy(max_restarts=2)
    job = Job(spec_of(("worker", 2), restart=restart, max_runtime_s=3600))
    job.tell(Begin())
    job.now += 60  # the time before all tasks are ready does not count
    job.all_ready()
    stops_at = job.now + 3600
    assert (job.state.status.stops_at, job.state.wake_at) == (stops_at, stops_at)
    job.now += 3000
    job.exit_all(LOST_PEER)
    job.wait()
    job.all_ready()
    assert job.state.wake_at == stops_at
    names = ("worker-0", "worker-1")
    assert job.wait() == [StopTasks(2, names, job.spec.stop_grace_s)]
    job.exit_all(ENDED_BY_TERM)
    status = job.state.status
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.TIME_LIMIT)
    assert status.message == "reached its maximum run time of 1h 00m"
    assert status.resumed().stops_at is None
    assert status.restarted("").stops_at == stops_at


def test_a_job_that_waits_for_its_restart_fails_after_its_maximum_run_time() -> None:
    restart = RestartPolicy(max_restarts=3, backoff_s=600, backoff_max_s=600)
    job = Job(spec_of(("worker", 1), restart=restart, max_runtime_s=300))
    job.run()
    job.exit_all(LOST_PEER)
    job.wait()
    job.all_ready()
    job.exit_all(LOST_PEER)
    assert job.wait() == []
    assert job.state.status.cause is FailureCause.TIME_LIMIT


def test_a_job_whose_time_is_over_before_it_restarts_has_failed(job: Job) -> None:
    job = Job(job.spec.model_copy(update={"max_runtime_s": 300}))
    job.run()
    job.now += 299
    job.exit("worker-0", LOST_PEER)
    assert job.state.status.state is JobState.RESTARTING
    job.now += 1
    job.tell(Tick())
    job.exit("worker-1", ENDED_BY_TERM)
    status = job.state.status
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.TIME_LIMIT)


def test_a_job_that_ends_when_its_time_is_over_has_succeeded() -> None:
    job = Job(spec_of(("chief", 1), ("ps", 1), max_runtime_s=300))
    job.run()
    job.now += 299
    job.exit("chief-0", DONE)
    job.now += 1
    assert job.tell(Tick()) == []
    job.exit("ps-0", ENDED_BY_TERM)
    assert job.state.status.state is JobState.SUCCEEDED


def test_an_error_of_the_program_at_the_end_of_its_time_is_the_cause(job: Job) -> None:
    job = Job(job.spec.model_copy(update={"max_runtime_s": 300}))
    job.run()
    job.now += 299
    job.exit("worker-0", LOST_PEER)
    job.now += 1
    job.tell(Tick())
    job.exit("worker-1", USER_ERROR)
    assert job.state.status.cause is FailureCause.USER_ERROR


def test_a_job_that_the_user_stops_in_time_is_stopped() -> None:
    job = Job(spec_of(("worker", 1), max_runtime_s=300))
    job.run()
    job.now += 299
    job.tell(StopRequested())
    job.now += 1
    job.tell(Tick())
    job.exit_all(ENDED_BY_TERM)
    assert job.state.status.state is JobState.STOPPED


def test_an_engine_that_cannot_start_fails_the_job(job: Job) -> None:
    job.tell(Begin(), StartFailed(1, "no ports"))
    for name in job.spec.task_ids:
        job.exit(name, TaskExit(agent_lost=True))
    status = job.state.status
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.ENGINE)
    assert status.message == "no ports"

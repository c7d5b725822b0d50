from __future__ import annotations

import pytest

from tests.engines.coordination.job import Job, spec_of
from timonel.engines.base import FailureCause, JobState
from timonel.engines.coordination.failures import TaskExit, TaskReport
from timonel.engines.coordination.generations import DRAIN_GRACE_S
from timonel.engines.coordination.lifecycle import (
    Begin,
    KillTasks,
    ScaleRequested,
    StartGeneration,
    StartTask,
    StopRequested,
    StopTasks,
    TaskExited,
    TaskReady,
    Tick,
)
from timonel.engines.spec import RestartPolicy, RoleSpec

DONE = TaskExit(exit_code=0)
PREEMPTED = TaskExit(signal=15)
RETRYABLE = TaskExit(exit_code=75)
OUT_OF_MEMORY = TaskExit(signal=9, oom_killed=True)
USER_ERROR = TaskExit(exit_code=1, report=TaskReport(FailureCause.USER_ERROR, "no such column"))


def job_of(**fields: object) -> Job:
    role = {"name": "worker", "replicas": 2, "on_loss": "restart-task", **fields}
    policy = RestartPolicy(max_restarts=2, backoff_s=8)
    return Job(spec_of(("chief", 1), RoleSpec.model_validate(role), restart=policy))


def test_one_task_alone_is_started_again_at_once_and_then_after_its_backoff() -> None:
    job = job_of()
    job.run()
    before = job.task("chief-0")
    assert job.exit("worker-1", PREEMPTED) == []
    assert job.task("worker-1").state == "restarting"
    assert job.state.status.state is JobState.RUNNING
    assert job.state.wake_at == job.now
    assert job.wait() == [StartTask(1, "worker-1", 2)]
    job.ready("worker-1")
    job.exit("worker-1", PREEMPTED)
    assert job.state.wake_at == job.now + 8
    assert job.wait() == [StartTask(1, "worker-1", 3)]
    job.ready("worker-1")
    status = job.state.status
    assert (status.generation, status.restarts, job.task("chief-0")) == (1, 0, before)
    assert job.state.wake_at is None


def test_what_an_earlier_attempt_says_counts_for_nothing() -> None:
    job = job_of()
    job.run()
    job.exit("worker-1", PREEMPTED)
    before = job.state
    job.tell(TaskExited("worker-1", 1, USER_ERROR, attempt=1))
    assert job.state == before
    job.wait()
    before = job.state
    job.tell(TaskReady("worker-1", 1, attempt=1), TaskExited("worker-1", 1, DONE, attempt=1))
    assert job.state == before


def test_a_users_error_ends_the_job() -> None:
    job = job_of()
    job.run()
    actions = job.exit("worker-1", USER_ERROR)
    assert actions == [StopTasks(1, ("chief-0", "worker-0"), DRAIN_GRACE_S, urgent=True)]
    job.exit("chief-0", PREEMPTED)
    job.exit("worker-0", PREEMPTED)
    assert job.state.status.cause is FailureCause.USER_ERROR


@pytest.mark.parametrize(("essential", "state"), [(True, "failed"), (False, "succeeded")])
def test_a_used_up_budget_is_the_jobs_failure_if_the_task_is_essential(
    essential: bool, state: str
) -> None:
    job = job_of(essential=essential)
    job.run()
    for _ in range(3):
        job.exit("worker-1", RETRYABLE)
        if job.task("worker-1").state == "restarting":
            job.wait()
            job.ready("worker-1")
    for name in ("chief-0", "worker-0"):
        job.exit(name, DONE)
    status = job.state.status
    assert (status.state.value, job.task("worker-1").attempt) == (state, 3)
    assert "all 2 restarts are used up" in (status.message or "")


def test_each_task_has_its_own_budget() -> None:
    job = job_of()
    job.run()
    for name in ("worker-0", "worker-1", "worker-0", "worker-1"):
        job.exit(name, RETRYABLE)
        job.wait()
        job.ready(name)
    assert job.state.status.state is JobState.RUNNING
    assert [task.attempt for task in job.state.status.tasks] == [1, 3, 3]


def test_a_lack_of_memory_is_not_tried_again() -> None:
    job = job_of()
    job.run()
    job.exit("worker-1", OUT_OF_MEMORY)
    job.exit("chief-0", PREEMPTED)
    job.exit("worker-0", PREEMPTED)
    status = job.state.status
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.OUT_OF_MEMORY)


def test_an_elastic_role_does_without_those_that_cannot_come_back() -> None:
    job = job_of(min_replicas=1)
    job.run()
    job.exit("worker-1", OUT_OF_MEMORY)
    assert job.state.status.state is JobState.RUNNING
    job.exit("worker-0", OUT_OF_MEMORY)
    assert job.state.status.state is JobState.STOPPING


def test_one_that_is_asked_for_is_started_again_after_all() -> None:
    job = job_of(min_replicas=1)
    job.run()
    for _ in range(3):
        job.exit("worker-1", RETRYABLE)
        if job.task("worker-1").state == "restarting":
            job.wait()
            job.ready("worker-1")
    assert job.task("worker-1").state == "failed"
    assert job.tell(ScaleRequested({"worker": 2})) == []
    assert job.wait() == [StartTask(1, "worker-1", 4)]
    job.ready("worker-1")
    job.exit("worker-1", RETRYABLE)
    assert job.task("worker-1").state == "restarting"  # its budget is a new one
    assert job.state.status.generation == 1


def test_a_new_budget_is_that_of_the_failed_task_only() -> None:
    job = job_of(min_replicas=1)
    job.run()
    for name in ("worker-0", "worker-0", "worker-1", "worker-1"):
        job.exit(name, RETRYABLE)
        job.wait()
        job.ready(name)
    job.exit("worker-1", RETRYABLE)
    job.tell(ScaleRequested({"worker": 2}))
    job.wait()
    job.ready("worker-1")
    job.exit("worker-0", RETRYABLE)
    assert [task.state for task in job.state.status.tasks] == ["running", "failed", "running"]


def test_an_attempt_that_does_not_get_up_is_lost_again() -> None:
    job = job_of()
    job.run()
    job.exit("worker-1", PREEMPTED)
    job.wait()
    assert job.state.wake_at == job.now + job.spec.start_timeout_s
    assert job.wait() == [KillTasks(1, ("worker-1",))]
    assert job.task("worker-1").cause is FailureCause.START_TIMEOUT
    assert job.wait() == [StartTask(1, "worker-1", 3)]


def test_attempts_that_do_not_get_up_twice_fail_the_job() -> None:
    job = job_of()
    job.run()
    job.exit("worker-1", PREEMPTED)
    for _ in range(3):
        job.wait()
    assert job.wait()[0] == KillTasks(1, ("worker-1",))
    assert job.task("worker-1").state == "failed"
    assert job.state.status.state is JobState.STOPPING


def test_one_that_is_lost_while_the_others_start_is_waited_for() -> None:
    job = job_of()
    job.tell(Begin())
    job.ready("chief-0")
    job.ready("worker-0")
    job.exit("worker-1", PREEMPTED)
    assert job.state.status.state is JobState.STARTING
    job.wait()
    job.ready("worker-1")
    assert job.state.status.state is JobState.RUNNING


def test_servants_that_wait_for_their_start_do_not_hold_up_the_end() -> None:
    job = job_of(serves=True)
    job.run()
    job.exit("worker-1", PREEMPTED)
    assert job.exit("chief-0", DONE) == [StopTasks(1, ("worker-0",), DRAIN_GRACE_S, urgent=True)]
    job.exit("worker-0", PREEMPTED)
    assert job.state.status.state is JobState.SUCCEEDED


def test_a_stop_while_a_task_waits_for_its_start() -> None:
    job = job_of()
    job.run()
    job.exit("worker-1", PREEMPTED)
    actions = job.tell(StopRequested())
    assert actions == [StopTasks(1, ("chief-0", "worker-0"), job.spec.stop_grace_s)]
    assert job.task("worker-1").state == "stopped"
    job.now += 8
    assert job.tell(Tick()) == []
    job.exit("chief-0", PREEMPTED)
    job.exit("worker-0", PREEMPTED)
    assert job.state.status.state is JobState.STOPPED


def test_a_stop_while_an_attempt_starts_waits_for_its_exit() -> None:
    job = job_of()
    job.run()
    job.exit("worker-1", PREEMPTED)
    job.wait()
    names = ("chief-0", "worker-0", "worker-1")
    assert job.tell(StopRequested()) == [StopTasks(1, names, job.spec.stop_grace_s)]
    for name in names:
        assert job.state.status.state is JobState.STOPPING
        job.exit(name, PREEMPTED)
    assert job.state.status.state is JobState.STOPPED


def test_the_loss_of_another_role_restarts_all() -> None:
    job = job_of()
    job.run()
    job.exit("worker-1", PREEMPTED)
    assert job.exit("chief-0", PREEMPTED) == [
        StopTasks(1, ("worker-0",), DRAIN_GRACE_S, urgent=True)
    ]
    job.exit("worker-0", PREEMPTED)
    assert job.wait() == [StartGeneration(2, {"chief": 1, "worker": 2})]
    assert {task.attempt for task in job.state.status.tasks} == {1}

"""Contract tests for tasks that fail or hang, and for their restarts."""

from __future__ import annotations

import json

import pytest

from tests.contracts.engines.harness import EngineHarness
from timonel.engines import FailureCause, JobState, JobStatus, RestartPolicy, RoleSpec, TaskStatus

NO_RESTART = RestartPolicy(max_restarts=0)
ROLES = (
    RoleSpec(name="chief"),
    RoleSpec(name="worker", replicas=2, on_loss="restart-task"),
)


class FailingContract:
    """Contract tests for tasks that fail or hang, and for their restarts."""

    def test_a_users_error_is_not_retried(self, engine: EngineHarness) -> None:
        status = engine.run("ready", "worker-1@raise:no such column", "wait")
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.USER_ERROR)
        assert (status.generation, status.failed_task) == (1, "worker-1")
        texts = [text for task, text in engine.lines() if task == "worker-1"]
        assert texts[0] == "Traceback (most recent call last):"
        assert texts[-1] == "RuntimeError: no such column"

    def test_a_reported_error_is_the_root(self, engine: EngineHarness) -> None:
        first = ("worker-0@await:ignoring", "worker-0@exit:75")
        steps = ("ready", *first, "ignore-term", "touch:ignoring", "sleep:0.3")
        status = engine.run(*steps, "report:user-error", "exit:1")
        assert (status.cause, status.failed_task) == (FailureCause.USER_ERROR, "worker-1")
        assert status.message == "reported user-error"

    def test_retryable_ends_are_retried_up_to_the_budget(self, engine: EngineHarness) -> None:
        status = engine.run("ready", "worker-0@exit:75", "wait")
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.LOST_PEER)
        assert (status.generation, status.restarts) == (3, 2)

    def test_a_killed_task_restarts_the_gang(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ready", "g1@wait", "await:go")
        engine.wait_for_state(job_id, JobState.RUNNING)
        engine.kill_task(job_id, "worker-1")
        again = engine.wait_until(
            job_id, lambda now: now.generation == 2 and now.state is JobState.RUNNING
        )
        assert again.restarts == 1
        engine.write_file("go")
        assert engine.wait(job_id).state is JobState.SUCCEEDED

    def test_a_crash_is_retried_once(self, engine: EngineHarness) -> None:
        status = engine.run("ready", "worker-0@signal:6", "wait")
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.CRASHED)
        assert (status.generation, status.failed_task) == (2, "worker-0")

    @pytest.mark.parametrize("end", ["signal:9", "exit:137"])
    def test_a_kill_is_retried_while_restarts_are_left(
        self, engine: EngineHarness, end: str
    ) -> None:
        status = engine.run("ready", f"worker-0@{end}", "wait")
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.CRASHED)
        assert (status.generation, status.failed_task) == (3, "worker-0")

    def test_a_crash_after_progress_is_another_crash(self, engine: EngineHarness) -> None:
        steps = ("g1@progress:10", "g2@progress:20", "ready", "worker-0@signal:6", "wait")
        status = engine.run(*steps)
        assert (status.cause, status.generation) == (FailureCause.CRASHED, 3)

    def test_a_hung_start_times_out(self, engine: EngineHarness) -> None:
        policy = RestartPolicy(max_restarts=0)
        steps = ("worker-0@ready", "wait")
        # On a busy machine, worker-0 needs more time to become ready.
        for timeout_s in (1.5, 5.0, 15.0):
            job_id = f"job-{timeout_s:.0f}"
            status = engine.run(*steps, job_id=job_id, restart=policy, start_timeout_s=timeout_s)
            assert (status.state, status.cause) == (JobState.FAILED, FailureCause.START_TIMEOUT)
            if status.failed_task == "worker-1":
                break
        assert status.failed_task == "worker-1"

    def test_a_job_ends_after_its_maximum_run_time(self, engine: EngineHarness) -> None:
        status = engine.run("count-terms", "ready", "report-terms", max_runtime_s=1.0)
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.TIME_LIMIT)
        assert status.message == "reached its maximum run time of 1s"
        assert (status.generation, status.restarts) == (1, 0)
        # They have the time of a stop, so they are not asked twice.
        assert sorted(engine.lines()) == [
            (f"worker-{index}", "asked to leave 1 times") for index in range(2)
        ]

    def test_a_task_without_a_sign_of_life_is_lost(self, engine: EngineHarness) -> None:
        steps = ("beat", "ready", "g1,worker-1@signal:19", "g1@wait")
        status = engine.run(*steps, hang_timeout_s=0.8)
        assert (status.state, status.generation) == (JobState.SUCCEEDED, 2)
        assert status.restarts == 1

    def test_a_hung_task_is_named(self, engine: EngineHarness) -> None:
        steps = ("beat", "ready", "worker-1@signal:19", "wait")
        status = engine.run(*steps, hang_timeout_s=0.8, restart=NO_RESTART)
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.HUNG)
        assert status.failed_task == "worker-1"
        assert (status.message or "").startswith("worker-1 hung: no sign of life for ")

    def test_a_task_without_steps_is_lost(self, engine: EngineHarness) -> None:
        steps = ("beat", "progress:7", "ready", "wait")
        roles = (RoleSpec(name="worker"),)
        status = engine.run(*steps, roles=roles, stall_timeout_s=0.5, restart=NO_RESTART)
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.HUNG)
        assert (status.message or "").startswith("worker-0 hung: no step for ")
        assert (status.message or "").endswith("the last was 7")

    def test_a_task_that_never_spoke_is_not_taken_for_hung(self, engine: EngineHarness) -> None:
        steps = ("ready", "worker-1@progress:7 resting", "sleep:0.8")
        status = engine.run(*steps, hang_timeout_s=0.2, stall_timeout_s=0.2)
        assert (status.state, status.restarts) == (JobState.SUCCEEDED, 0)

    def test_a_hung_task_is_not_waited_for(self, engine: EngineHarness) -> None:
        steps = ("beat", "ready", "worker-1@touch:here", "worker-1@signal:19", "await:here")
        status = engine.run(*steps, "sleep:0.3", "exit:75", hang_timeout_s=60, restart=NO_RESTART)
        assert (status.cause, status.failed_task) == (FailureCause.HUNG, "worker-1")
        assert (status.message or "").endswith("it was stopped by a signal or a debugger")

    def test_who_lost_a_peer_is_told_to_leave_at_once(self, engine: EngineHarness) -> None:
        steps = ("count-terms", "ready", "worker-1@await:counting", "worker-1@exit:75")
        job_id = engine.submit(*steps, "touch:counting", "report-terms", restart=NO_RESTART)
        assert engine.wait(job_id).cause is FailureCause.LOST_PEER
        assert engine.lines(task_id="worker-0") == [("worker-0", "asked to leave 2 times")]

    def test_who_is_to_stop_is_told_once(self, engine: EngineHarness) -> None:
        job_id = engine.submit("count-terms", "ready", "report-terms", stop_grace_s=10)
        engine.wait_for_state(job_id, JobState.RUNNING)
        engine.engine.cancel(job_id)
        assert engine.wait(job_id).state is JobState.STOPPED
        assert engine.lines(task_id="worker-0") == [("worker-0", "asked to leave 1 times")]

    def test_a_lost_task_alone_is_started_again(self, engine: EngineHarness) -> None:
        steps = ("listen", "ready", "worker-1,a2@dump:again.json", "await:go")
        job_id = engine.submit(*steps, roles=ROLES)
        before = engine.wait_for_state(job_id, JobState.RUNNING)
        engine.kill_task(job_id, "worker-1")
        after = engine.wait_until(
            job_id, lambda now: (task(now).attempt, task(now).state) == (2, "running")
        )
        assert (after.generation, after.restarts, after.state) == (1, 0, JobState.RUNNING)
        assert task(after).address == task(before).address
        assert task(after).cause is FailureCause.CRASHED
        for name in ("chief-0", "worker-0"):
            assert task(after, name) == task(before, name)
        environ = engine.read_json("again.json")["environ"]
        cluster = json.loads(environ["TIMONEL_CLUSTER"])
        assert (cluster["generation"], cluster["attempt"]) == (1, 2)
        assert cluster["cluster"]["worker"][1] == task(before).address
        markers = [line.text for line in engine.engine.logs(job_id, task_id="worker-1")]
        assert [text.partition(" (")[0] for text in markers if text.startswith("===")] == [
            "=== generation 1",
            "=== generation 1, attempt 2",
        ]
        engine.write_file("go")
        status = engine.wait(job_id)
        assert (status.state, status.restarts) == (JobState.SUCCEEDED, 0)

    def test_a_users_error_in_place_ends_the_job(self, engine: EngineHarness) -> None:
        status = engine.run("ready", "worker-1@raise:no such column", "wait", roles=ROLES)
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.USER_ERROR)
        assert (status.failed_task, task(status).attempt) == ("worker-1", 1)

    def test_a_task_has_a_budget_of_its_own(self, engine: EngineHarness) -> None:
        status = engine.run("ready", "worker-1@exit:75", "wait", roles=ROLES)
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.LOST_PEER)
        assert (status.generation, task(status).attempt) == (1, 3)
        assert (status.message or "").endswith("(all 2 restarts are used up)")

    @pytest.mark.parametrize("number", [9, 15])
    def test_a_task_that_is_killed_comes_back_however_often(
        self, engine: EngineHarness, number: int
    ) -> None:
        restart = RestartPolicy(max_restarts=2, backoff_s=0.01)
        steps = ("ready", f"worker-1@signal:{number}", "await:go")
        job_id = engine.submit(*steps, roles=ROLES, restart=restart)
        engine.wait_until(job_id, lambda now: task(now).attempt >= 6)
        assert engine.engine.status(job_id).generation == 1
        engine.engine.cancel(job_id)

    def test_a_job_goes_on_without_what_is_not_essential(self, engine: EngineHarness) -> None:
        roles = (
            RoleSpec(name="chief"),
            RoleSpec(name="evaluator", on_loss="restart-task", essential=False),
        )
        steps = ("ready", "evaluator-0@signal:6", "await:go")
        job_id = engine.submit(*steps, roles=roles, restart=RestartPolicy(backoff_s=0.01))
        engine.wait_until(job_id, lambda now: task(now, "evaluator-0").state == "failed")
        engine.write_file("go")
        status = engine.wait(job_id)
        assert (status.state, status.generation) == (JobState.SUCCEEDED, 1)
        assert "continued without evaluator-0" in (status.message or "")
        assert "it failed again at the same point" in (status.message or "")

    def test_tasks_that_serve_are_ended_after_the_others(self, engine: EngineHarness) -> None:
        roles = (
            RoleSpec(name="chief"),
            RoleSpec(name="worker", replicas=2, on_loss="restart-task", serves=True),
        )
        status = engine.run("ready", "chief-0@exit:0", "wait", roles=roles)
        assert status.state is JobState.SUCCEEDED
        assert [task.state for task in status.tasks] == ["succeeded", "stopped", "stopped"]


def task(status: JobStatus, name: str = "worker-1") -> TaskStatus:
    """Return one task of a job."""
    return next(task for task in status.tasks if task.task_id == name)

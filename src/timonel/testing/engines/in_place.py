"""Contract tests for tasks that restart in place while others continue."""

from __future__ import annotations

import json
import os
import signal

import pytest

from timonel.engines import FailureCause, JobState, JobStatus, RestartPolicy, RoleSpec, TaskStatus
from timonel.testing.engines.harness import EngineHarness, eventually, pid_of

ROLES = (
    RoleSpec(name="chief"),
    RoleSpec(name="worker", replicas=2, on_loss="restart-task"),
)


class InPlaceContract:
    """Contract tests for a lost task that restarts in place."""

    def test_a_lost_task_alone_is_started_again(self, engine: EngineHarness) -> None:
        steps = ("listen", "ready", "worker-1,a2@dump:again.json", "await:go")
        job_id = engine.submit(*steps, roles=ROLES)
        before = engine.wait_for_state(job_id, JobState.RUNNING)
        os.kill(pid_of(before, "worker-1"), signal.SIGKILL)
        after = engine.wait_until(
            job_id, lambda now: (task(now).attempt, task(now).state) == (2, "running")
        )
        assert (after.generation, after.restarts, after.state) == (1, 0, JobState.RUNNING)
        assert task(after).address == task(before).address
        assert task(after).pid != task(before).pid
        assert task(after).cause is FailureCause.CRASHED
        for name in ("chief-0", "worker-0"):
            assert task(after, name) == task(before, name)
        eventually(engine.file("again.json").exists)
        told = json.loads(engine.file("again.json").read_text())["environ"]
        cluster = json.loads(told["TIMONEL_CLUSTER"])
        assert (cluster["generation"], cluster["attempt"]) == (1, 2)
        assert cluster["cluster"]["worker"][1] == task(before).address
        markers = [line.text for line in engine.engine.logs(job_id, task_id="worker-1")]
        assert [text.partition(" (")[0] for text in markers if text.startswith("===")] == [
            "=== generation 1",
            "=== generation 1, attempt 2",
        ]
        engine.file("go").touch()
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
        engine.file("go").touch()
        status = engine.wait(job_id)
        assert (status.state, status.generation) == (JobState.SUCCEEDED, 1)
        assert "went on without evaluator-0" in (status.message or "")
        assert "it happened again at the same point" in (status.message or "")

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

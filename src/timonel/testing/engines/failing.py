"""Contract tests for failed tasks: the gang restarts, or the job ends."""

from __future__ import annotations

import os
import signal

import pytest

from timonel.engines import FailureCause, JobState, RestartPolicy
from timonel.testing.engines.harness import EngineHarness, pid_of


class FailingContract:
    """Contract tests for failed tasks: the gang restarts, or the job ends."""

    def test_a_users_error_is_not_retried(self, engine: EngineHarness) -> None:
        status = engine.run("ready", "worker-1@raise:no such column", "wait")
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.USER_ERROR)
        assert (status.generation, status.failed_task) == (1, "worker-1")
        texts = [text for task, text in engine.lines() if task == "worker-1"]
        assert texts[0] == "Traceback (most recent call last):"
        assert texts[-1] == "RuntimeError: no such column"

    def test_a_reported_error_is_the_root(self, engine: EngineHarness) -> None:
        steps = ("ready", "worker-0@exit:75", "ignore-term", "report:user-error", "exit:1")
        status = engine.run(*steps)
        assert (status.cause, status.failed_task) == (FailureCause.USER_ERROR, "worker-1")
        assert status.message == "reported user-error"

    def test_retryable_ends_are_retried_up_to_the_budget(self, engine: EngineHarness) -> None:
        status = engine.run("ready", "worker-0@exit:75", "wait")
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.LOST_PEER)
        assert (status.generation, status.restarts) == (3, 2)

    def test_a_killed_task_restarts_the_gang(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ready", "g1@wait", "await:go")
        status = engine.wait_for_state(job_id, JobState.RUNNING)
        os.kill(pid_of(status, "worker-1"), signal.SIGKILL)
        again = engine.wait_until(
            job_id, lambda now: now.generation == 2 and now.state is JobState.RUNNING
        )
        assert again.restarts == 1
        assert {t.pid for t in again.tasks}.isdisjoint({t.pid for t in status.tasks})
        assert {t.address for t in again.tasks} != {t.address for t in status.tasks}
        engine.file("go").touch()
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
        status = engine.run(*steps, restart=policy, start_timeout_s=1.5)
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.START_TIMEOUT)
        assert status.failed_task == "worker-1"

"""Contract tests for cancelling jobs."""

from __future__ import annotations

import signal

from timonel.engines import FailureCause, JobState, RestartPolicy
from timonel.testing.engines.harness import EngineHarness


class StoppingContract:
    """Contract tests for cancelling jobs."""

    def test_cancel_lets_tasks_end_by_themselves(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ready", "wait")
        engine.wait_for_state(job_id, JobState.RUNNING)
        engine.engine.cancel(job_id)
        engine.engine.cancel(job_id)
        status = engine.wait(job_id)
        assert (status.state, status.cause) == (JobState.STOPPED, FailureCause.STOPPED)
        assert {task.signal for task in status.tasks} == {signal.SIGTERM}
        engine.engine.cancel(job_id)
        assert engine.engine.status(job_id) == status

    def test_cancel_while_starting(self, engine: EngineHarness) -> None:
        job_id = engine.submit("wait")
        engine.engine.cancel(job_id)
        assert engine.wait(job_id).state is JobState.STOPPED

    def test_cancel_while_waiting_to_restart(self, engine: EngineHarness) -> None:
        # The first restart has no delay.
        policy = RestartPolicy(max_restarts=3, backoff_s=600, backoff_max_s=600)
        job_id = engine.submit("ready", "exit:75", restart=policy)
        engine.wait_until(
            job_id, lambda status: status.state is JobState.RESTARTING and status.restarts == 2
        )
        engine.engine.cancel(job_id)
        assert engine.wait(job_id).state is JobState.STOPPED

    def test_cancel_kills_what_ignores_it(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ignore-term", "stray", "ready", "wait", stop_grace_s=0.2)
        engine.wait_for_state(job_id, JobState.RUNNING)
        engine.engine.cancel(job_id)
        status = engine.wait(job_id)
        assert status.state is JobState.STOPPED
        assert {task.signal for task in status.tasks} == {signal.SIGKILL}
        engine.assert_nothing_left()

    def test_cancel_lets_held_tasks_end_by_themselves(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ready", "worker-1@signal:19", "wait", stop_grace_s=20)
        engine.wait_for_state(job_id, JobState.RUNNING)
        engine.engine.cancel(job_id)
        assert {task.signal for task in engine.wait(job_id).tasks} == {signal.SIGTERM}

    def test_cancel_leaves_a_job_that_has_ended(self, engine: EngineHarness) -> None:
        status = engine.run("exit:3")
        engine.engine.cancel("job")
        assert engine.engine.status("job") == status
        assert status.state is JobState.FAILED

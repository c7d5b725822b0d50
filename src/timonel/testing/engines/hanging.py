"""Contract tests for hung tasks, and for notifying their peers."""

from __future__ import annotations

from timonel.engines import FailureCause, JobState, RestartPolicy, RoleSpec
from timonel.testing.engines.harness import EngineHarness

ONCE = RestartPolicy(max_restarts=0)


class HangingContract:
    """Contract tests for hung tasks."""

    def test_a_task_without_a_sign_of_life_is_lost(self, engine: EngineHarness) -> None:
        steps = ("beat", "ready", "g1,worker-1@signal:19", "g1@wait")
        status = engine.run(*steps, hang_timeout_s=0.8)
        assert (status.state, status.generation) == (JobState.SUCCEEDED, 2)
        assert status.restarts == 1

    def test_a_hung_task_is_named(self, engine: EngineHarness) -> None:
        steps = ("beat", "ready", "worker-1@signal:19", "wait")
        status = engine.run(*steps, hang_timeout_s=0.8, restart=ONCE)
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.HUNG)
        assert status.failed_task == "worker-1"
        assert (status.message or "").startswith("worker-1 hung: no sign of life for ")

    def test_a_task_without_steps_is_lost(self, engine: EngineHarness) -> None:
        steps = ("beat", "progress:7", "ready", "wait")
        roles = (RoleSpec(name="worker"),)
        status = engine.run(*steps, roles=roles, stall_timeout_s=0.5, restart=ONCE)
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.HUNG)
        assert (status.message or "").startswith("worker-0 hung: no step for ")
        assert (status.message or "").endswith("the last was 7")

    def test_a_task_that_never_spoke_is_not_taken_for_hung(self, engine: EngineHarness) -> None:
        steps = ("ready", "worker-1@progress:7 resting", "sleep:0.8")
        status = engine.run(*steps, hang_timeout_s=0.2, stall_timeout_s=0.2)
        assert (status.state, status.restarts) == (JobState.SUCCEEDED, 0)

    def test_a_hung_task_is_not_waited_for(self, engine: EngineHarness) -> None:
        steps = ("beat", "ready", "worker-1@signal:19", "sleep:0.3", "exit:75")
        status = engine.run(*steps, hang_timeout_s=60, restart=ONCE)
        assert (status.cause, status.failed_task) == (FailureCause.HUNG, "worker-1")
        assert (status.message or "").endswith("it was held by a signal or a debugger")

    def test_who_lost_a_peer_is_told_to_leave_at_once(self, engine: EngineHarness) -> None:
        steps = ("count-terms", "ready", "worker-1@await:counting", "worker-1@exit:75")
        job_id = engine.submit(*steps, "touch:counting", "report-terms", restart=ONCE)
        assert engine.wait(job_id).cause is FailureCause.LOST_PEER
        assert engine.lines(task_id="worker-0") == [("worker-0", "asked to leave 2 times")]

    def test_who_is_to_stop_is_told_once(self, engine: EngineHarness) -> None:
        job_id = engine.submit("count-terms", "ready", "report-terms", stop_grace_s=10)
        engine.wait_for_state(job_id, JobState.RUNNING)
        engine.engine.cancel(job_id)
        assert engine.wait(job_id).state is JobState.STOPPED
        assert engine.lines(task_id="worker-0") == [("worker-0", "asked to leave 1 times")]

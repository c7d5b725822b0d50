"""Contract tests for jobs that shrink and grow; for elastic engines."""

from __future__ import annotations

import os
import signal

import pytest

from timonel.engines import (
    ElasticEngine,
    FailureCause,
    JobState,
    JobStatus,
    RestartPolicy,
    RoleSpec,
)
from timonel.errors import JobError, NotFoundError, SpecError
from timonel.testing.engines.harness import EngineHarness, pid_of

ROLES = (RoleSpec(name="worker", replicas=3, min_replicas=1),)


class ElasticContract:
    """Contract tests for jobs that shrink and grow."""

    def test_a_job_changes_its_size_when_asked(self, engine: EngineHarness) -> None:
        elastic = elastic_engine(engine)
        policy = RestartPolicy(max_restarts=1, backoff_s=0.01)
        job_id = engine.submit("leave-at-term", "ready", "await:go", roles=ROLES, restart=policy)
        status = wait_for(engine, job_id, generation=1, size=3)
        assert [(size.role, size.now, size.wished) for size in status.sizes] == [("worker", 3, 3)]
        elastic.scale(job_id, {"worker": 2})
        elastic.scale(job_id, {"worker": 2})
        status = wait_for(engine, job_id, generation=2, size=2)
        assert (status.restarts, status.cause) == (0, None)
        os.kill(pid_of(status, "worker-1"), signal.SIGKILL)
        status = wait_for(engine, job_id, generation=3, size=2)
        assert status.restarts == 1
        elastic.scale(job_id, {"worker": 3})
        status = wait_for(engine, job_id, generation=4, size=3)
        assert (status.message, status.sizes[0].wished) == (
            "goes on with 3 tasks instead of 2",
            3,
        )
        engine.file("go").touch()
        assert engine.wait(job_id).state is JobState.SUCCEEDED
        assert len({line.task_id for line in engine.engine.logs(job_id)}) == 3

    def test_a_job_goes_on_with_those_that_come_and_grows_again(
        self, engine: EngineHarness
    ) -> None:
        elastic_engine(engine)
        policy = RestartPolicy(max_restarts=1, backoff_s=0.01, rest_s=2.0)
        steps = ("leave-at-term", "worker-2,g1@wait", "dump:last.json", "ready", "await:go")
        fields = {"roles": ROLES, "restart": policy, "start_timeout_s": 1.5}
        job_id = engine.submit(*steps, **fields)
        status = wait_for(engine, job_id, generation=2, size=2)
        assert (status.restarts, status.cause) == (1, FailureCause.START_TIMEOUT)
        status = wait_for(engine, job_id, generation=3, size=3)
        assert status.restarts == 1
        engine.file("go").touch()
        assert engine.wait(job_id).state is JobState.SUCCEEDED

    def test_a_size_that_cannot_be_is_refused(self, engine: EngineHarness) -> None:
        elastic = elastic_engine(engine)
        roles = (RoleSpec(name="chief"), *ROLES)
        job_id = engine.submit("ready", "await:go", roles=roles)
        with pytest.raises(SpecError, match="expected 1 to 3 workers, got 4"):
            elastic.scale(job_id, {"worker": 4})
        with pytest.raises(SpecError, match="expected a role whose size may change, got chief"):
            elastic.scale(job_id, {"chief": 1})
        with pytest.raises(NotFoundError, match="nosuch"):
            elastic.scale("nosuch", {"worker": 2})
        engine.file("go").touch()
        assert engine.wait(job_id).generation == 1
        with pytest.raises(JobError, match="has succeeded"):
            elastic.scale(job_id, {"worker": 2})


def elastic_engine(harness: EngineHarness) -> ElasticEngine:
    """Return the engine under test; skip if jobs cannot change size."""
    if not isinstance(harness.engine, ElasticEngine):
        pytest.skip("the jobs of this engine keep their size")
    return harness.engine


def wait_for(engine: EngineHarness, job_id: str, *, generation: int, size: int) -> JobStatus:
    """Wait until a generation of this size runs."""
    return engine.wait_until(
        job_id,
        lambda now: (
            (now.state, now.generation, len(now.tasks)) == (JobState.RUNNING, generation, size)
        ),
    )

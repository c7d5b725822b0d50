"""Contract tests for optional abilities: resizing and resuming jobs."""

from __future__ import annotations

import json

import pytest

from tests.contracts.engines.harness import TASK_MODULE, EngineHarness
from timonel.engines import (
    CommandSpec,
    ElasticEngine,
    FailureCause,
    JobState,
    JobStatus,
    RestartPolicy,
    ResumingEngine,
    RoleSpec,
)
from timonel.errors import JobError, NotFoundError, SpecError

ELASTIC_ROLES = (RoleSpec(name="worker", replicas=3, min_replicas=1),)


class OptionalContract:
    """Contract tests for optional abilities: resizing and resuming jobs."""

    def test_a_job_changes_its_size_when_asked(self, engine: EngineHarness) -> None:
        elastic = elastic_engine(engine)
        policy = RestartPolicy(max_restarts=1, backoff_s=0.01)
        job_id = engine.submit(
            "leave-at-term", "ready", "await:go", roles=ELASTIC_ROLES, restart=policy
        )
        status = wait_for(engine, job_id, generation=1, size=3)
        assert [(size.role, size.now, size.requested) for size in status.sizes] == [
            ("worker", 3, 3)
        ]
        elastic.scale(job_id, {"worker": 2})
        elastic.scale(job_id, {"worker": 2})
        status = wait_for(engine, job_id, generation=2, size=2)
        assert (status.restarts, status.cause) == (0, None)
        engine.kill_task(job_id, "worker-1")
        status = wait_for(engine, job_id, generation=3, size=2)
        assert status.restarts == 1
        elastic.scale(job_id, {"worker": 3})
        status = wait_for(engine, job_id, generation=4, size=3)
        assert (status.message, status.sizes[0].requested) == (
            "continues with 3 tasks instead of 2",
            3,
        )
        engine.write_file("go")
        assert engine.wait(job_id).state is JobState.SUCCEEDED
        assert len({line.task_id for line in engine.engine.logs(job_id)}) == 3

    def test_a_job_goes_on_with_those_that_come_and_grows_again(
        self, engine: EngineHarness
    ) -> None:
        elastic_engine(engine)
        policy = RestartPolicy(max_restarts=1, backoff_s=0.01, rest_s=2.0)
        steps = ("leave-at-term", "worker-2,g1@wait", "dump:last.json", "ready", "await:go")
        fields = {"roles": ELASTIC_ROLES, "restart": policy, "start_timeout_s": 4.0}
        job_id = engine.submit(*steps, **fields)
        status = wait_for(engine, job_id, generation=2, size=2)
        assert (status.restarts, status.cause) == (1, FailureCause.START_TIMEOUT)
        status = wait_for(engine, job_id, generation=3, size=3)
        assert status.restarts == 1
        engine.write_file("go")
        assert engine.wait(job_id).state is JobState.SUCCEEDED

    def test_a_size_that_cannot_be_is_refused(self, engine: EngineHarness) -> None:
        elastic = elastic_engine(engine)
        roles = (RoleSpec(name="chief"), *ELASTIC_ROLES)
        job_id = engine.submit("ready", "await:go", roles=roles)
        with pytest.raises(SpecError, match="expected 1 to 3 workers, got 4"):
            elastic.scale(job_id, {"worker": 4})
        with pytest.raises(SpecError, match="the size of role chief is fixed"):
            elastic.scale(job_id, {"chief": 1})
        with pytest.raises(NotFoundError, match="nosuch"):
            elastic.scale("nosuch", {"worker": 2})
        engine.write_file("go")
        assert engine.wait(job_id).generation == 1
        with pytest.raises(JobError, match="it has ended"):
            elastic.scale(job_id, {"worker": 2})

    def test_a_failed_job_goes_on_where_it_ended(self, engine: EngineHarness) -> None:
        resuming = resuming_engine(engine)
        epilogue = CommandSpec(module=TASK_MODULE, args=("append:outcomes",))
        failed = engine.run(
            "ready", "worker-1,g1@wait", "g1@raise:no luck", "print:done", epilogue=epilogue
        )
        assert failed.state is JobState.FAILED
        resuming.resume("job")
        status = engine.wait("job")
        assert (status.state, status.generation) == (JobState.SUCCEEDED, 2)
        assert (status.cause, status.message) == (None, None)
        assert status.created_at == failed.created_at
        outcomes = [json.loads(o) for o in (engine.read_file("outcomes") or "").splitlines()]
        assert [outcome["state"] for outcome in outcomes] == ["failed", "succeeded"]
        texts = [text for _, text in engine.lines(task_id="worker-0")]
        assert texts[0] == "Traceback (most recent call last):"
        assert texts[-1] == "done"

    def test_a_stopped_job_goes_on_and_can_be_stopped_again(self, engine: EngineHarness) -> None:
        resuming = resuming_engine(engine)
        job_id = engine.submit("ready", "wait")
        for generation in (1, 2):
            assert engine.wait_for_state(job_id, JobState.RUNNING).generation == generation
            engine.engine.cancel(job_id)
            assert engine.wait(job_id).state is JobState.STOPPED
            if generation == 1:
                resuming.resume(job_id)

    def test_only_a_job_that_ended_without_success_is_resumed(self, engine: EngineHarness) -> None:
        resuming = resuming_engine(engine)
        job_id = engine.submit("ready", "await:go")
        with pytest.raises(JobError, match="can be resumed, but job is"):
            resuming.resume(job_id)
        engine.write_file("go")
        engine.wait(job_id)
        with pytest.raises(JobError, match=r"but job has succeeded"):
            resuming.resume(job_id)
        with pytest.raises(NotFoundError, match="nosuch"):
            resuming.resume("nosuch")


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


def resuming_engine(harness: EngineHarness) -> ResumingEngine:
    """Return the engine under test; skip if it cannot resume jobs."""
    if not isinstance(harness.engine, ResumingEngine):
        pytest.skip("this engine starts no job again")
    return harness.engine

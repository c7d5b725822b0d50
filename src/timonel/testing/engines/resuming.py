"""Contract tests for resuming failed or stopped jobs; for resuming engines."""

from __future__ import annotations

import json

import pytest

from timonel.engines import CommandSpec, JobState, ResumingEngine
from timonel.errors import JobError, NotFoundError
from timonel.testing.engines.harness import TASK_MODULE, EngineHarness


class ResumingContract:
    """Contract tests for resuming jobs that failed or were stopped."""

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
        outcomes = [json.loads(o) for o in engine.file("outcomes").read_text().splitlines()]
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
        with pytest.raises(JobError, match="has failed or was stopped, but job is"):
            resuming.resume(job_id)
        engine.file("go").touch()
        engine.wait(job_id)
        with pytest.raises(JobError, match="but job is succeeded"):
            resuming.resume(job_id)
        with pytest.raises(NotFoundError, match="nosuch"):
            resuming.resume("nosuch")


def resuming_engine(harness: EngineHarness) -> ResumingEngine:
    """Return the engine under test; skip if it cannot resume jobs."""
    if not isinstance(harness.engine, ResumingEngine):
        pytest.skip("this engine starts no job again")
    return harness.engine

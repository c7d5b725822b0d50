"""Contract tests for sidecars and epilogues of jobs."""

from __future__ import annotations

import json

import pytest

from timonel.engines import CommandSpec, JobState
from timonel.testing.engines.harness import TASK_MODULE, EngineHarness, eventually


class CommandContract:
    """Contract tests for sidecars and epilogues of jobs."""

    @pytest.mark.parametrize(
        ("steps", "state"),
        [
            (("exit:0",), JobState.SUCCEEDED),
            (("stray", "exit:1"), JobState.FAILED),
            (("ready", "wait"), JobState.STOPPED),
        ],
    )
    def test_the_epilogue_runs_once_before_the_end_is_seen(
        self, engine: EngineHarness, steps: tuple[str, ...], state: JobState
    ) -> None:
        epilogue = CommandSpec(module=TASK_MODULE, args=("append:outcomes",))
        job_id = engine.submit(*steps, epilogue=epilogue)
        if state is JobState.STOPPED:
            engine.wait_for_state(job_id, JobState.RUNNING)
            engine.engine.cancel(job_id)
        status = engine.wait(job_id)
        outcomes = engine.file("outcomes").read_text().splitlines()
        assert [json.loads(line)["state"] for line in outcomes] == [state.value]
        assert status.state is state
        engine.assert_nothing_left()

    def test_sidecars_may_end_after_the_epilogue(self, engine: EngineHarness) -> None:
        sidecars = (CommandSpec(module=TASK_MODULE, args=("await:over", "touch:sidecar-ended")),)
        epilogue = CommandSpec(module=TASK_MODULE, args=("touch:over",))
        status = engine.run("exit:0", sidecars=sidecars, epilogue=epilogue)
        assert status.state is JobState.SUCCEEDED
        eventually(engine.file("sidecar-ended").exists)
        engine.assert_nothing_left()

    def test_the_end_is_seen_before_sidecars_end(self, engine: EngineHarness) -> None:
        sidecars = (CommandSpec(module=TASK_MODULE, args=("await:seen", "touch:sidecar-ended")),)
        status = engine.run("exit:0", sidecars=sidecars)
        assert status.state is JobState.SUCCEEDED
        assert not engine.file("sidecar-ended").exists()
        engine.file("seen").touch()
        eventually(engine.file("sidecar-ended").exists)
        engine.assert_nothing_left()

    def test_a_failing_sidecar_decides_nothing(self, engine: EngineHarness) -> None:
        sidecars = (CommandSpec(module=TASK_MODULE, args=("exit:1",)),)
        assert engine.run("ready", sidecars=sidecars).state is JobState.SUCCEEDED

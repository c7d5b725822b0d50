"""Contract tests for reading the output of tasks."""

from __future__ import annotations

from timonel.engines import JobState
from timonel.testing.engines.harness import EngineHarness


class LogContract:
    """Contract tests for reading the output of tasks."""

    def test_logs_have_every_line_in_order(self, engine: EngineHarness) -> None:
        engine.run("ready", "print:first", "worker-1@print:second", "print:third")
        assert engine.lines(task_id="worker-1") == [
            ("worker-1", "first"),
            ("worker-1", "second"),
            ("worker-1", "third"),
        ]
        assert ("worker-0", "third") in engine.lines()
        marker = next(iter(engine.engine.logs("job", task_id="worker-0"))).text
        assert marker.startswith("=== generation 1")

    def test_logs_follow_a_job_to_its_end(self, engine: EngineHarness) -> None:
        job_id = engine.submit("print:early", "ready", "await:go", "print:late")
        seen = []
        for line in engine.engine.logs(job_id, task_id="worker-0", follow=True):
            seen.append(line.text)
            if line.text == "early":
                assert not engine.engine.status(job_id).state.is_final
                engine.file("go").touch()
        assert seen[1:] == ["early", "late"]
        assert engine.engine.status(job_id).state is JobState.SUCCEEDED

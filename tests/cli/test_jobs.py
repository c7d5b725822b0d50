"""Jobs on the command line: their size, and starting them again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from timonel.engines import CommandSpec, JobState, RoleSpec
from timonel.engines.local import LocalEngine
from timonel.storage import find_workspace
from timonel.testing.engines import EngineHarness
from timonel.tracking import follow_events, read_run, start_run

STEPS = ("leave-at-term", "ready", "await:go")
WORKERS = RoleSpec(name="worker", replicas=3, min_replicas=1)


@pytest.fixture
def engine(here: Path) -> Iterator[EngineHarness]:
    workspace = find_workspace()
    harness = EngineHarness(LocalEngine(workspace.jobs), workspace.jobs, here)
    yield harness
    harness.close()


@pytest.mark.parametrize(
    ("leader", "workers", "tasks"),
    [
        # Counted as --workers counts them: the chief trains too, but for one that hands out work.
        (RoleSpec(name="chief"), 3, ["chief-0", "worker-0", "worker-1"]),
        (RoleSpec(name="ps"), 2, ["ps-0", "worker-0", "worker-1"]),
    ],
)
def test_a_job_is_scaled(
    timonel: Timonel, engine: EngineHarness, leader: RoleSpec, workers: int, tasks: list[str]
) -> None:
    engine.submit(*STEPS, roles=(leader, WORKERS))
    engine.wait_for_state("job", JobState.RUNNING)
    assert "3 (1 to 3)" in timonel("jobs", "show", "job").out
    done = timonel("jobs", "scale", "last", workers)
    assert (done.exit_code, done.out) == (0, f"job is asked to go on with {workers} workers\n")
    status = engine.wait_until("job", lambda s: (s.generation, s.state) == (2, JobState.RUNNING))
    assert [task.task_id for task in status.tasks] == tasks
    (size,) = json.loads(timonel("jobs", "show", "job", "--json").out)["sizes"]
    assert (size["now"], size["wished"]) == (2, 2)


def test_a_size_that_cannot_be_is_refused(timonel: Timonel, engine: EngineHarness) -> None:
    engine.submit("ready", "await:go", roles=(RoleSpec(name="chief"), WORKERS))
    engine.submit("ready", "await:go", job_id="fixed")
    assert "expected 2 to 4 workers, got 1" in timonel("jobs", "scale", "job", 1).error_line
    refused = timonel("jobs", "scale", "fixed", 2)
    assert "expected a job that was started with a range of workers" in refused.error_line
    engine.engine.cancel("job")
    engine.wait("job")
    assert "but job has stopped" in timonel("jobs", "scale", "job", 2).error_line


EPILOGUE = "timonel.training.finish"


def start_failing(engine: EngineHarness) -> None:
    """Submit a job with a run, whose first generation fails."""
    workspace = find_workspace()
    start_run(workspace, "train", run_id="job", job_id="job")
    command = CommandSpec(module=EPILOGUE, args=(str(workspace.root), "job"))
    engine.submit("ready", "g1@exit:3", "print:done", epilogue=command)
    assert engine.wait("job").state is JobState.FAILED


def test_a_failed_job_is_resumed_with_its_run(timonel: Timonel, engine: EngineHarness) -> None:
    start_failing(engine)
    before = read_run(find_workspace(), "job")
    assert (before.status, before.is_finished) == ("failed", True)
    resumed = timonel("jobs", "resume")
    assert resumed.out == "job goes on: see 'timonel logs job --follow'\n"
    assert engine.wait("job").state is JobState.SUCCEEDED
    after = read_run(find_workspace(), "job")
    assert (after.status, after.cause, after.message) == ("succeeded", None, None)
    assert "but job is succeeded" in timonel("jobs", "resume", "job").error_line
    assert read_run(find_workspace(), "job") == after
    types = [event["type"] for event in follow_events(find_workspace(), "job", stop=lambda: True)]
    assert types == ["finish", "resume", "finish"]


def test_a_job_that_cannot_be_resumed_keeps_its_run(
    timonel: Timonel, engine: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_failing(engine)
    before = read_run(find_workspace(), "job")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        assert "supervisor to start" in timonel("jobs", "resume").error_line
    after = read_run(find_workspace(), "job")
    assert (after.status, after.cause, after.message) == (
        before.status,
        before.cause,
        before.message,
    )

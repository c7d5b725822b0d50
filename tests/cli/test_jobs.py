"""Jobs on the command line: their size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from timonel.engines import JobState, RoleSpec
from timonel.engines.local import LocalEngine
from timonel.storage import find_workspace
from timonel.testing.engines import EngineHarness

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

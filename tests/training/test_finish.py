from __future__ import annotations

import numpy as np
import pytest

from tests.training.worker.fakes import Variable
from timonel.engines import FailureCause, JobState, JobStatus
from timonel.storage import Workspace
from timonel.tracking import read_run, start_run
from timonel.training.finish import OUTCOME, finish_run, main
from timonel.training.worker.checkpoints import Checkpoints, Progress


def outcome(state: JobState, **changes: object) -> JobStatus:
    return JobStatus.model_validate({"job_id": "train-1", "state": state, **changes})


@pytest.fixture
def run_id(workspace: Workspace) -> str:
    start_run(workspace, "train", run_id="train-1", job_id="train-1")
    return "train-1"


def test_success_with_what_was_made(workspace: Workspace, run_id: str) -> None:
    job = workspace.jobs / run_id
    checkpoints = Checkpoints(
        job / "checkpoints", writes=True, progress=workspace.root / "progress"
    )
    progress = Progress().after(0, {"loss": 1.0}, steps=3)
    checkpoints.save(0, [Variable(np.ones(2))], progress)
    checkpoints.save(0, [Variable(np.ones(2))], progress.as_finished())

    finish_run(workspace, run_id, outcome(JobState.SUCCEEDED))

    record = read_run(workspace, run_id)
    assert record.status == "succeeded"
    assert [(a.type, a.uri) for a in record.outputs] == [
        ("checkpoint", str(job / "checkpoints/fit-000/final"))
    ]
    assert record.outputs[0].digest


def test_failure_with_its_cause(
    workspace: Workspace, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = outcome(JobState.FAILED, cause=FailureCause.LOST_PEER, message="worker-0 is gone")
    monkeypatch.setenv(OUTCOME, status.model_dump_json())
    assert main([str(workspace.root), run_id]) == 0
    record = read_run(workspace, run_id)
    assert (record.status, record.cause, record.message) == (
        "failed",
        "lost-peer",
        "worker-0 is gone",
    )


def test_the_first_end_counts(workspace: Workspace, run_id: str) -> None:
    finish_run(workspace, run_id, outcome(JobState.STOPPED, message="stopped"))
    before = read_run(workspace, run_id).events()
    finish_run(workspace, run_id, outcome(JobState.SUCCEEDED))
    record = read_run(workspace, run_id)
    assert record.status == "stopped"
    assert record.events() == before

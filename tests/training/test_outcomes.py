"""Runs whose jobs ended without anybody who could tell."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from timonel.engines.base import FailureCause, JobState, JobStatus
from timonel.storage import find_workspace
from timonel.tracking import list_runs, start_run
from timonel.training import outcomes


class LocalJobs:
    """Stands for the engine of a machine whose supervisors are gone."""

    shares_machine = True

    def status(self, job_id: str) -> JobStatus:
        return JobStatus(
            job_id=job_id,
            state=JobState.FAILED,
            cause=FailureCause.ENGINE,
            message="supervisor died",
        )


@pytest.mark.parametrize(("silent_s", "status"), [(0, "running"), (120, "failed")])
def test_a_run_of_a_job_that_nobody_saw_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_s: int, status: str
) -> None:
    workspace = find_workspace(tmp_path / "w")
    start_run(workspace, "train", job_id="train-1", run_id="train-1", engine="local")
    monkeypatch.setattr(outcomes, "get_engine", lambda *_: LocalJobs())
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + silent_s)
    (run,) = outcomes.with_outcomes(workspace, list_runs(workspace))
    assert (run.status, run.message) == (status, "supervisor died" if silent_s else None)

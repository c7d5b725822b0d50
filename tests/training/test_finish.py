from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from timonel.engines import FailureCause, JobState, JobStatus
from timonel.engines.environment import OUTCOME
from timonel.storage import Workspace
from timonel.tracking import read_run, start_run
from timonel.training.evaluations import EvaluationRecords, FitEvaluations
from timonel.training.finish import finish_run, interruption, main
from timonel.training.settings import Settings
from timonel.training.spec import TrainSpec
from timonel.training.worker.fit.checkpoints import FitState, Progress
from timonel.training.worker.state import checkpoint_format


def outcome(state: JobState, **changes: object) -> JobStatus:
    return JobStatus.model_validate({"job_id": "train-1", "state": state, **changes})


@pytest.fixture
def run_id(workspace: Workspace) -> str:
    start_run(workspace, "train", run_id="train-1", job_id="train-1")
    return "train-1"


def save(job: Path, *names: str, fit: int = 0) -> None:
    """Save checkpoints of three steps each: ends of epochs, or ``final``."""
    progress = Progress()
    for name in names:
        number = int(name.removeprefix("epoch-")) if name != "final" else len(names) - 1
        progress = progress.after(number, {"loss": 1.0 - number}, steps=3 * (number + 1))
        kept = progress.as_finished() if name == "final" else progress
        checkpoint_format.write(
            job / "checkpoints" / f"fit-{fit:03d}" / name, FitState(kept, [np.ones(2)])
        )


def test_success_with_what_was_made(workspace: Workspace, run_id: str) -> None:
    job = workspace.jobs / run_id
    save(job, "epoch-0001", "final")
    save(job, "epoch-0001", fit=1)
    finish_run(workspace, run_id, outcome(JobState.SUCCEEDED))

    record = read_run(workspace, run_id)
    assert record.status == "succeeded"
    assert [(a.type, a.uri, a.metadata) for a in record.outputs] == [
        ("checkpoint", str(job / "checkpoints/fit-000/final"), {"epochs": 2}),
        ("checkpoint", str(job / "checkpoints/fit-001/epoch-0001"), {"epochs": 1}),
    ]
    assert record.outputs[0].digest


def test_an_interrupted_job_says_whether_it_has_checkpoints(workspace: Workspace) -> None:
    job = workspace.jobs / "train-1"
    (job / "checkpoints" / "fit-000").mkdir(parents=True)
    assert interruption(workspace, "train-1").hint == "it saved no checkpoint"
    save(job, "epoch-0001")
    assert interruption(workspace, "train-1").hint == "its checkpoints are kept"


def test_the_end_is_by_the_clock_of_the_supervisor(workspace: Workspace, run_id: str) -> None:
    ended_at = read_run(workspace, run_id).started_at + 5.0
    finish_run(workspace, run_id, outcome(JobState.SUCCEEDED, ended_at=ended_at))
    assert read_run(workspace, run_id).duration_s == pytest.approx(5.0)


def test_the_end_of_an_epoch_is_newer_than_its_steps(workspace: Workspace, run_id: str) -> None:
    folder = workspace.jobs / run_id / "checkpoints" / "fit-000"
    after = Progress().after(0, {}, steps=9)
    for progress in (after, Progress().within(4)):
        checkpoint_format.write(folder / progress.checkpoint_name, FitState(progress, [np.ones(2)]))
    finish_run(workspace, run_id, outcome(JobState.FAILED))
    (artifact,) = read_run(workspace, run_id).outputs
    assert artifact.uri == str(folder / "epoch-0001")


def test_the_best_checkpoint_by_an_evaluator(workspace: Workspace, run_id: str) -> None:
    given = {"keep_best": "val_loss", "evaluator": True}
    TrainSpec(
        run_id=run_id, workspace=str(workspace.root), script="s.py", settings=Settings.of(given)
    ).write(workspace.runs / run_id)
    job = workspace.jobs / run_id
    save(job, "epoch-0001", "epoch-0002", "final")
    EvaluationRecords(job).write(0, FitEvaluations(best="epoch-0002"))
    finish_run(workspace, run_id, outcome(JobState.SUCCEEDED))
    assert [(a.uri, a.metadata) for a in read_run(workspace, run_id).outputs] == [
        (str(job / "checkpoints/fit-000/epoch-0002"), {"epochs": 2, "best": True}),
        (str(job / "checkpoints/fit-000/final"), {"epochs": 3}),
    ]


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

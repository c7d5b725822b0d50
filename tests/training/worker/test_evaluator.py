"""What a run is told of evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from timonel.storage import Workspace
from timonel.tracking import RunWriter, read_run, start_run
from timonel.training.evaluations import CheckpointEvaluation
from timonel.training.worker.evaluator import EvaluationReport
from timonel.training.worker.fit.checkpoints import Checkpoint, FitState, Progress


class Summaries:
    """What would go to TensorBoard."""

    def __init__(self) -> None:
        self.written: list[tuple[dict[str, float], int]] = []

    def evaluation(self, values: dict[str, float], step: int) -> None:
        self.written.append((values, step))


@pytest.fixture
def run(workspace: Workspace) -> RunWriter:
    return start_run(workspace, "train", run_id="train-1", job_id="train-1")


def found(name: str, epoch: int, *, whole: bool = True) -> CheckpointEvaluation:
    return CheckpointEvaluation(
        checkpoint=name,
        epoch=epoch,
        step=10 * epoch,
        is_epochs_end=whole,
        values={"val_loss": 0.5},
        seconds=0.1,
    )


def told(run: RunWriter) -> list[dict[str, Any]]:
    return [e for e in read_run(run.workspace, run.run_id).events() if e["type"] == "metrics"]


def final(epochs: int) -> Checkpoint:
    return Checkpoint(Path("final"), FitState(Progress(tuple(range(epochs)), finished=True)))


def test_each_result_is_told_once_also_by_a_process_that_goes_on(run: RunWriter) -> None:
    summaries = Summaries()
    for _ in range(2):
        report = EvaluationReport(run, "evaluator-0", summaries)  # type: ignore[arg-type] # a fake
        report.is_shared = False
        for _ in range(2):
            report.tell(0, found("epoch-0002", 1))
            report.tell(0, found("epoch-0002-step-0000003", 2, whole=False))
    assert [(e["checkpoint"], e["epoch"], e["step"]) for e in told(run)] == [
        ("epoch-0002", 1, 10),
        ("epoch-0002-step-0000003", 2, 20),
    ]
    assert summaries.written == [({"loss": 0.5}, 10), ({"loss": 0.5}, 20)]


def test_epochs_of_later_calls_are_counted_on(run: RunWriter) -> None:
    report = EvaluationReport(run, "evaluator-0", Summaries())  # type: ignore[arg-type] # a fake
    report.is_shared = False
    report.fit_ends(final(4))
    report.tell(1, found("epoch-0001", 0))
    (event,) = told(run)
    assert (event["fit"], event["epoch"], event["fit_epoch"]) == (1, 4, 1)


def test_what_the_trainers_tell_themselves_is_not_told_again(run: RunWriter) -> None:
    report = EvaluationReport(run, "evaluator-0", Summaries())  # type: ignore[arg-type] # a fake
    report.is_shared = True
    report.tell(0, found("epoch-0001", 0))
    report.tell(0, found("epoch-0001-step-0000003", 1, whole=False))
    assert [event["checkpoint"] for event in told(run)] == ["epoch-0001-step-0000003"]


def test_checkpoints_that_were_saved_are_known_by_name(run: RunWriter) -> None:
    report = EvaluationReport(run, "evaluator-0", Summaries())  # type: ignore[arg-type] # a fake
    assert report.saved(0) == set()
    run.event("checkpoint", fit=0, epochs=1, path="/job/checkpoints/fit-000/epoch-0001")
    run.event("checkpoint", fit=1, epochs=1, path="/job/checkpoints/fit-001/final")
    assert report.saved(0) == {"epoch-0001"}

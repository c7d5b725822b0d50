"""Real jobs with an evaluator beside training: what it finds and brings about, and its failures."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.training.conftest import SCRIPTS, BareEngine, log_of
from tests.waiting import until
from timonel.errors import UserCodeError
from timonel.storage import Workspace
from timonel.training import Run, train
from timonel.training.evaluations import EvaluationRecords

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def result_of(run: Run, task_id: str) -> dict[str, Any]:
    """Return what the script has printed in a task, the last time that it ran there."""
    lines = [line for line in log_of(run, task_id).splitlines() if line.startswith("RESULT ")]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def told_by_evaluator(run: Run) -> list[dict[str, Any]]:
    return [event for event in run.record.events() if event.get("task") == "evaluator-0"]


def kill(run: Run, task_id: str) -> None:
    """Kill a task with SIGKILL."""
    pid = next(task.pid for task in run.job.status().tasks if task.task_id == task_id)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_an_evaluator_and_what_becomes_of_it(jobs_workspace: Workspace, engine: BareEngine) -> None:
    run = train(
        SCRIPTS / "judged.py",
        workspace=jobs_workspace,
        on=engine,
        evaluator=True,
        keep_best="val_loss",
        params={"epochs": 8},
        detach=True,
    )
    until(lambda: told_by_evaluator(run))
    kill(run, "evaluator-0")
    count = len(told_by_evaluator(run))
    until(lambda: len(told_by_evaluator(run)) > count)
    record = run.wait()
    assert record.restarts == 0  # nobody but the evaluator was started again
    (evaluator,) = [t for t in run.job.status().tasks if t.task_id == "evaluator-0"]
    assert (evaluator.state, evaluator.attempt) == ("succeeded", 2)

    told = told_by_evaluator(run)
    assert len({(event["fit"], event["checkpoint"]) for event in told}) == len(told)
    assert [e["fit"] for e in told if e["checkpoint"] == "final"] == [0, 1]
    # Its points lie where the trainers' own do.
    places = {(point.step, point.epoch) for point in record.series["loss"]}
    assert {(point.step, point.epoch) for point in record.series["val_loss"]} <= places
    assert record.series["val_loss"][-1].epoch == 9

    chief, beside = result_of(run, "chief-0"), result_of(run, "evaluator-0")
    assert chief["evaluated"]["loss"] == pytest.approx(beside["evaluated"]["loss"], rel=1e-5)
    first = [event["metrics"]["val_loss"] for event in told if event["fit"] == 0]
    assert chief["histories"][0]["val_loss"] == pytest.approx(first)
    assert len(chief["histories"][0]["loss"]) == 8
    assert len(chief["histories"][1]["val_mae"]) >= 1
    assert "val_loss" not in chief["histories"][2]
    assert beside["histories"][0] == chief["histories"][0]
    assert "fit 0: the evaluator runs the validation" in log_of(run)
    assert "fit 2 has no validation data" in log_of(run, "evaluator-0")

    best = EvaluationRecords(jobs_workspace.jobs / run.id).read(0).best
    kept = [a for a in record.outputs if a.metadata.get("best") and "fit-000" in a.uri]
    assert [artifact.uri.rpartition("/")[2] for artifact in kept] == [best]
    assert list((jobs_workspace.jobs / run.id / "tensorboard" / "evaluator").glob("events.*"))


def test_it_ends_training_that_gets_no_better(
    jobs_workspace: Workspace, engine: BareEngine
) -> None:
    run = train(
        SCRIPTS / "judged.py",
        workspace=jobs_workspace,
        on=engine,
        evaluator=True,
        early_stopping="val_loss:2",
        params={"epochs": 1000, "lr": 1e-12},  # nothing gets better
        detach=True,
    )
    record = run.wait()
    assert record.status == "succeeded"
    chief = result_of(run, "chief-0")
    # How many epochs pass until the evaluator has looked three times is the machine's affair.
    assert 3 <= len(chief["histories"][0]["loss"]) < 1000
    assert len(chief["histories"][1]["loss"]) == 2  # a request is for its own call alone
    assert any(artifact.type == "savedmodel" for artifact in record.outputs)
    assert "val_loss did not improve for 2 checkpoints" in log_of(run, "evaluator-0")


@pytest.mark.soak
def test_trainers_that_are_killed_do_not_disturb_it(
    jobs_workspace: Workspace, engine: BareEngine
) -> None:
    run = train(
        SCRIPTS / "judged.py",
        workspace=jobs_workspace,
        on=engine,
        workers=2,
        evaluator=True,
        params={"epochs": 14, "pause": 0.5},
        detach=True,
    )
    for number, task in enumerate(("worker-0", "chief-0", "evaluator-0")):
        until(lambda count=3 * number + 1: len(told_by_evaluator(run)) >= count)
        kill(run, task)
    record = run.wait()
    assert record.status == "succeeded"
    assert record.restarts == 2
    told = told_by_evaluator(run)
    assert len({(event["fit"], event["checkpoint"]) for event in told}) == len(told)
    assert [e["fit"] for e in told if e["checkpoint"] == "final"] == [0, 1]
    chief, beside = result_of(run, "chief-0"), result_of(run, "evaluator-0")
    assert chief["histories"] == beside["histories"]
    assert chief["evaluated"]["loss"] == pytest.approx(beside["evaluated"]["loss"], rel=1e-4)


@pytest.mark.soak
def test_tf_keras_and_what_an_evaluator_cannot_measure(
    jobs_workspace: Workspace, engine: BareEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")

    def run(**options: Any) -> Run:
        return train(
            SCRIPTS / "judged.py",
            workspace=jobs_workspace,
            on=engine,
            evaluator=True,
            params={"epochs": 3},
            **options,
        )

    found = run()
    chief, beside = result_of(found, "chief-0"), result_of(found, "evaluator-0")
    assert chief["histories"] == beside["histories"]
    assert chief["evaluated"]["loss"] == pytest.approx(beside["evaluated"]["loss"], rel=1e-5)
    with pytest.raises(UserCodeError, match="has no metric val_f1"):
        run(early_stopping="max:val_f1")


@pytest.mark.soak
@pytest.mark.parametrize("legacy", ["0", "1"])
@pytest.mark.parametrize(
    "options", [{}, {"backup_workers": 0}], ids=["asynchronous", "synchronous"]
)
def test_beside_parameter_servers(
    options: dict[str, Any],
    legacy: str,
    jobs_workspace: Workspace,
    engine: BareEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", legacy)
    run = train(
        SCRIPTS / "judged.py",
        workspace=jobs_workspace,
        on=engine,
        ps=1,
        workers=2,
        evaluator=True,
        keep_best="val_loss",
        early_stopping="val_loss:2",
        params={"epochs": 1000, "lr": 1e-12},  # nothing gets better
        detach=True,
        **options,
    )
    record = run.wait()
    assert (record.status, record.restarts) == ("succeeded", 0)
    chief, beside = result_of(run, "chief-0"), result_of(run, "evaluator-0")
    assert 3 <= len(chief["histories"][0]["loss"]) < 500
    assert len(chief["histories"][1]["loss"]) == 2
    assert chief["histories"] == beside["histories"]
    assert chief["evaluated"]["loss"] == pytest.approx(beside["evaluated"]["loss"], rel=1e-4)
    best = EvaluationRecords(jobs_workspace.jobs / run.id).read(0).best
    kept = [a for a in record.outputs if a.metadata.get("best") and "fit-000" in a.uri]
    assert [artifact.uri.rpartition("/")[2] for artifact in kept] == [best]

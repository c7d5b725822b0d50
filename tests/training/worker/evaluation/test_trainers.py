"""What trainers leave to an evaluator, and how long they wait for it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from timonel.training.evaluations import CheckpointEvaluation, EvaluationRecords, FitEvaluations
from timonel.training.worker.evaluation import trainers
from timonel.training.worker.evaluation.trainers import NEVER, Trainers, patience_s

DATA = {"validation_data": (np.ones((2, 1)), np.ones(2))}


def entry(name: str, epoch: int, loss: float, *, whole: bool = True):
    return CheckpointEvaluation(
        checkpoint=name,
        epoch=epoch,
        step=epoch,
        is_epochs_end=whole,
        values={"val_loss": loss},
        seconds=2,
    )


class Time:
    """A clock that goes on by waiting, and what happens meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then: list[tuple[float, Any]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for due, act in list(self.then):
            if self.now >= due:
                act()
                self.then.remove((due, act))


@pytest.fixture
def made(tmp_path: Path) -> tuple[Trainers, EvaluationRecords, Time]:
    records, clock = EvaluationRecords(tmp_path), Time()
    (tmp_path / "tasks" / "evaluator-0").mkdir(parents=True)
    task_dir = tmp_path / "tasks" / "chief-0"
    return Trainers(keras, records, task_dir, clock, clock.sleep), records, clock


def history(**values: list[float]) -> Any:
    return SimpleNamespace(history=dict(values))


def alive(tmp_path: Path, ago_s: float = 0.0) -> None:
    path = tmp_path / "tasks" / "evaluator-0" / "alive"
    path.touch()
    os.utime(path, (time.time() - ago_s,) * 2)


def test_results_come_into_the_history(made, tmp_path: Path) -> None:
    leave, records, clock = made
    arguments: dict[str, Any] = dict(DATA)
    leave.fit_begins(None, arguments)
    assert arguments["validation_freq"] is NEVER
    alive(tmp_path)
    done = (
        entry("epoch-0001", 0, 3.0),
        entry("epoch-0001-step-0000005", 1, 2.5, whole=False),
        entry("final", 2, 1.0),
    )
    clock.then.append((5.0, lambda: records.write(0, FitEvaluations(done=done))))
    result = history(loss=[3.0, 2.0, 1.0])
    leave.fit_ends(None, result)
    assert result.history == {"loss": [3.0, 2.0, 1.0], "val_loss": [3.0, 1.0]}
    assert 5.0 <= clock.now < 6.0


def test_who_looks_at_validation_has_it_at_once(made, caplog: pytest.LogCaptureFixture) -> None:
    leave, _, clock = made
    arguments: dict[str, Any] = {**DATA, "callbacks": [keras.callbacks.EarlyStopping()]}
    with caplog.at_level("INFO"):
        leave.fit_begins(None, arguments)
    assert "validation_freq" not in arguments
    assert "as the callback EarlyStopping may use the results" in caplog.text
    result = history(val_loss=[1.0])
    leave.fit_ends(None, result)
    assert (result.history, clock.now) == ({"val_loss": [1.0]}, 0.0)


def test_without_validation_data_nobody_waits(made) -> None:
    leave, _, clock = made
    leave.fit_begins(None, {})
    leave.fit_ends(None, history(loss=[1.0]))
    assert clock.now == 0.0


def test_an_evaluator_that_is_gone_is_waited_for_as_long_as_a_restart_may_take(
    made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave, _, clock = made
    leave.fit_begins(None, dict(DATA))
    alive(tmp_path, ago_s=60.0)
    result = history(loss=[1.0])
    leave.fit_ends(None, result)
    assert trainers.GONE_S <= clock.now < trainers.GONE_S + 1
    assert result.history == {"loss": [1.0]}
    assert "The evaluator does not respond. fit 0 ends without its results" in caplog.text
    before = clock.now
    leave.fit_begins(None, dict(DATA))
    leave.fit_ends(None, history())
    assert clock.now < before + 1  # nor is one that is known to be gone waited for again


def test_one_that_lives_is_not_waited_for_for_ever(
    made, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, _, clock = made
    monkeypatch.setattr(leave, "_is_alive", lambda: True)
    leave.fit_begins(None, dict(DATA))
    leave.fit_ends(None, history())
    assert 600 <= clock.now < 601
    assert "is not done after" in caplog.text
    slow = entry("epoch-0001", 0, 1.0).model_copy(update={"seconds": 500.0})
    assert patience_s(FitEvaluations(done=(slow,))) == 5000.0

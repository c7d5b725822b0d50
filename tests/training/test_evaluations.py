from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import CorruptError, FormatError
from timonel.tracking.events import encode_number
from timonel.training.evaluations import (
    CheckpointEvaluation,
    EvaluationRecords,
    FitEvaluations,
    best_of,
    should_stop,
)
from timonel.training.option_values import Best, EarlyStopping

LOSS = Best("val_loss", larger=False)


def entry(name: str, **metrics: float) -> CheckpointEvaluation:
    values = {key: encode_number(value) for key, value in metrics.items()}
    return CheckpointEvaluation(
        checkpoint=name, epoch=0, step=3, is_epochs_end=True, values=values, seconds=0.5
    )


def results(*losses: float) -> list[CheckpointEvaluation]:
    return [entry(f"epoch-{number:04d}", val_loss=loss) for number, loss in enumerate(losses)]


def test_a_record_comes_back_with_every_number(tmp_path: Path) -> None:
    records = EvaluationRecords(tmp_path)
    assert records.read(2) == FitEvaluations()
    done = (entry("epoch-0001", val_loss=math.inf, val_a=math.nan), entry("final", val_loss=0.5))
    record = FitEvaluations(evaluating="x", best="final", skipped=3, done=done)
    records.write(2, record)
    assert records.read(2) == record
    assert math.isnan(records.read(2).done[0].metrics["val_a"])


def test_what_is_evaluated_now_and_what_is_best_are_held() -> None:
    assert FitEvaluations().held == frozenset()
    assert FitEvaluations(evaluating="epoch-0005", best="epoch-0002").held == {
        "epoch-0005",
        "epoch-0002",
    }
    record = FitEvaluations(done=(entry("final"),))
    assert (record.has("final"), record.has("epoch-0001")) == (True, False)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    records = EvaluationRecords(tmp_path)
    records.write(0, FitEvaluations())
    (path,) = tmp_path.rglob("*.json")
    text = path.read_text()
    path.write_text(text.replace('"skipped": 0', '"skipped": "many"'))
    with pytest.raises(CorruptError, match="not a valid record"):
        records.read(0)
    path.write_text(text.replace('"format": 1', '"format": 99'))
    with pytest.raises(FormatError, match="newer timonel"):
        records.read(0)


def test_trainers_say_that_they_are_through(tmp_path: Path) -> None:
    assert not EvaluationRecords(tmp_path).is_trained
    EvaluationRecords(tmp_path).mark_trained()
    assert EvaluationRecords(tmp_path).is_trained
    EvaluationRecords(tmp_path).begin_training()
    assert not EvaluationRecords(tmp_path).is_trained
    EvaluationRecords(tmp_path / "new").begin_training()


def test_the_first_finite_result_of_equals_is_the_best() -> None:
    done = results(math.nan, 2.0, 1.0, 1.0, math.inf)
    assert best_of(done, LOSS) == done[2]
    assert best_of(done, Best("val_f1", larger=True)) is None
    assert should_stop(done, EarlyStopping(LOSS, 2))
    assert not should_stop(done, EarlyStopping(LOSS, 3))
    assert should_stop(results(math.nan, math.nan), EarlyStopping(LOSS, 2))


@given(st.lists(st.floats(-5, 5), min_size=1), st.integers(1, 5), st.booleans())
def test_training_stops_after_patience_checkpoints_without_improvement(
    values: list[float], patience: int, larger: bool
) -> None:
    sign = -1 if larger else 1
    best = min(range(len(values)), key=lambda n: (sign * values[n], n))
    due = should_stop(results(*values), EarlyStopping(Best("val_loss", larger), patience))
    assert due == (len(values) - 1 - best >= patience)

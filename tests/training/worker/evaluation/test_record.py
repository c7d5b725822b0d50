from __future__ import annotations

import math
from pathlib import Path

import pytest

from timonel.errors import CorruptError, FormatError
from timonel.training.worker.evaluation.record import Record, Records, evaluated


def entry(name: str, **metrics: float):
    return evaluated(name, epoch=0, step=3, is_epochs_end=True, metrics=metrics, seconds=0.5)


def test_a_record_comes_back_with_every_number(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.read(2) == Record()
    done = (entry("epoch-0001", val_loss=math.inf, val_a=math.nan), entry("final", val_loss=0.5))
    record = Record(evaluating="x", best="final", skipped=3, done=done)
    records.write(2, record)
    assert records.read(2) == record
    assert math.isnan(records.read(2).done[0].metrics["val_a"])
    assert records.fits() == [2]


def test_what_is_evaluated_now_and_what_is_best_are_held() -> None:
    assert Record().held == frozenset()
    assert Record(evaluating="epoch-0005", best="epoch-0002").held == {"epoch-0005", "epoch-0002"}
    record = Record(done=(entry("final"),))
    assert (record.has("final"), record.has("epoch-0001")) == (True, False)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.write(0, Record())
    (path,) = tmp_path.rglob("*.json")
    text = path.read_text()
    path.write_text(text.replace('"skipped": 0', '"skipped": "many"'))
    with pytest.raises(CorruptError, match="expected evaluations in"):
        records.read(0)
    path.write_text(text.replace('"format": 1', '"format": 99'))
    with pytest.raises(FormatError, match="newer timonel"):
        records.read(0)


def test_trainers_say_that_they_are_through(tmp_path: Path) -> None:
    assert not Records(tmp_path).is_trained
    Records(tmp_path).mark_trained()
    assert Records(tmp_path).is_trained
    Records(tmp_path).begin_training()
    assert not Records(tmp_path).is_trained
    Records(tmp_path / "new").begin_training()

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.training.worker.evaluation.early_stopping import (
    PATIENCE,
    Stopping,
    best_of,
    judges,
    parse_stopping,
    since_best,
)
from timonel.training.worker.evaluation.record import Evaluated, evaluated
from timonel.training.worker.state.best import Best, parse_best

LOSS = Best("val_loss", larger=False)


def found(*losses: float) -> list[Evaluated]:
    return [
        evaluated(
            f"epoch-{n:04d}",
            epoch=n,
            step=n,
            is_epochs_end=True,
            metrics={"val_loss": loss},
            seconds=1,
        )
        for n, loss in enumerate(losses)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("val_loss", Stopping(LOSS, PATIENCE)),
        ("val_loss:5", Stopping(LOSS, 5)),
        ("val_accuracy:2", Stopping(Best("val_accuracy", larger=True), 2)),
        ("max:val_score", Stopping(Best("val_score", larger=True), PATIENCE)),
        ("min:val_f1:1", Stopping(Best("val_f1", larger=False), 1)),
        (None, None),
    ],
)
def test_what_early_stopping_means(text: str | None, expected: Stopping | None) -> None:
    assert parse_stopping(text) == expected


@pytest.mark.parametrize("text", ["", "loss", "val_loss:0", "val_loss:-1", "5", "up:val_loss:5"])
def test_what_early_stopping_cannot_mean(text: str) -> None:
    with pytest.raises(SpecError, match="expected early_stopping as a metric of the evaluation"):
        parse_stopping(text)


def test_an_evaluator_judges_what_only_it_measures() -> None:
    assert judges(parse_best("val_loss"))
    assert not judges(parse_best("loss"))
    assert not judges(None)


def test_the_first_of_equals_is_the_best_and_what_is_no_number_is_not() -> None:
    done = found(math.nan, 2.0, 1.0, 1.0, math.inf)
    assert best_of(done, LOSS) == done[2]
    assert best_of(done, Best("val_f1", larger=True)) is None
    assert since_best(done, LOSS) == 2
    assert since_best(found(math.nan, math.nan), LOSS) == 2


@given(st.lists(st.floats(-5, 5), min_size=1), st.integers(1, 5), st.booleans())
def test_stopping_is_due_after_so_many_that_are_no_better(values, patience, larger) -> None:
    done = found(*values)
    sign = -1 if larger else 1
    best = min(range(len(values)), key=lambda n: (sign * values[n], n))
    due = Stopping(Best("val_loss", larger), patience).is_due(done)
    assert due == (len(values) - 1 - best >= patience)

from __future__ import annotations

from collections.abc import Callable

import pytest

from timonel.errors import SpecError
from timonel.training.option_values import (
    PATIENCE,
    Best,
    EarlyStopping,
    StepRange,
    parse_best,
    parse_early_stopping,
    parse_steps,
)

LOSS = Best("val_loss", larger=False)


@pytest.mark.parametrize(
    ("text", "larger"),
    [("val_loss", False), ("val_accuracy", True), ("auc", True), ("min:val_auc", False)],
)
def test_the_direction_of_a_metric(text: str, larger: bool) -> None:
    best = parse_best(text)
    assert best is not None
    assert best.larger == larger
    assert best.is_better(2.0, 1.0) == larger
    assert best.value({best.metric: [1.0, 0.5]}) == 0.5
    assert best.value({best.metric: [1.0, float("nan")]}) is None
    assert best.value({}) is None


@pytest.mark.parametrize("text", ["", "up:val_loss", "min:", "val loss", "min:max:x"])
def test_invalid_criteria_are_rejected(text: str) -> None:
    with pytest.raises(SpecError, match="needs a metric such as val_loss"):
        parse_best(text)


@pytest.mark.parametrize("parse", [parse_best, parse_early_stopping])
def test_a_name_that_shows_no_direction_needs_one(parse: Callable[[str], object]) -> None:
    with pytest.raises(SpecError, match="'val_psnr' does not show whether larger") as caught:
        parse("val_psnr")
    assert caught.value.hint == "write max:val_psnr or min:val_psnr"
    assert parse("max:val_psnr") is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("val_loss", EarlyStopping(LOSS, PATIENCE)),
        ("val_loss:5", EarlyStopping(LOSS, 5)),
        ("val_accuracy:2", EarlyStopping(Best("val_accuracy", larger=True), 2)),
        ("max:val_score", EarlyStopping(Best("val_score", larger=True), PATIENCE)),
        ("min:val_f1:1", EarlyStopping(Best("val_f1", larger=False), 1)),
        (None, None),
    ],
)
def test_early_stopping_rules(text: str | None, expected: EarlyStopping | None) -> None:
    assert parse_early_stopping(text) == expected


@pytest.mark.parametrize("text", ["", "loss", "val_loss:0", "val_loss:-1", "5", "up:val_loss:5"])
def test_invalid_early_stopping_is_rejected(text: str) -> None:
    with pytest.raises(SpecError, match="needs a validation metric"):
        parse_early_stopping(text)


def test_validation_metrics_need_an_evaluation() -> None:
    assert Best("val_loss", larger=False).needs_evaluation
    assert not Best("loss", larger=False).needs_evaluation


@pytest.mark.parametrize(("text", "steps"), [("7", StepRange(7, 7)), ("10:20", StepRange(10, 20))])
def test_ranges_of_steps(text: str, steps: StepRange) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize("text", ["0", "0:3", "5:4"])
def test_invalid_steps_are_rejected(text: str) -> None:
    with pytest.raises(SpecError, match="needs a range of steps"):
        parse_steps(text)

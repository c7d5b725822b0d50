from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.tuning.limits import StudyLimits
from timonel.tuning.objectives import Objective
from timonel.tuning.records import TrialRecord

MAXIMIZE = Objective("accuracy")


def ended(*values: float | None) -> list[TrialRecord]:
    """Trials that ended at 110, 120, ...; None failed."""
    return [
        TrialRecord(
            number=number,
            status="failed" if value is None else "succeeded",
            params={},
            values=() if value is None else (value,),
            curve=(),
            run_id=f"train-{number}",
            reason="",
            started_at=100,
            ended_at=110 + 10 * number,
        )
        for number, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("limits", "values", "elapsed_s", "reason"),
    [
        (StudyLimits(), (None,) * 99, 1e9, None),
        (StudyLimits(trials=3), (1, 2), 30, None),
        (StudyLimits(trials=3), (1, None, 2), 30, "all 3 trials were started"),
        (StudyLimits(max_seconds=90), (1,), 89, None),
        (StudyLimits(max_seconds=90), (1,), 90, "the time limit of 1m 30s is over"),
        (StudyLimits(max_failed=2), (None, 1), 30, None),
        (StudyLimits(max_failed=2), (None, 1, None), 30, "2 trials failed, the limit is 2"),
        (StudyLimits(trials_without_progress=2), (1, 1, 2, 2), 50, None),
        (
            StudyLimits(trials_without_progress=2),
            (3, math.nan, 2),
            50,
            "the last 2 trials did not improve the best value",
        ),
    ],
)
def test_study_limits(
    limits: StudyLimits, values: tuple[float | None, ...], elapsed_s: float, reason: str | None
) -> None:
    assert limits.reached(ended(*values), MAXIMIZE, elapsed_s) == reason


def test_running_trials_count_as_started_only() -> None:
    running = [replace(trial, status="running", values=(), ended_at=None) for trial in ended(1, 2)]
    assert StudyLimits(trials=2).reached(running, MAXIMIZE, 0)
    limits = StudyLimits(trials_without_progress=1, max_failed=1)
    assert limits.reached(running, MAXIMIZE, 0) is None


@given(st.lists(st.floats(-10, 10) | st.none(), max_size=12), st.integers(1, 4))
@example([0.0, -0.0], 1)
def test_limits_mirror_the_goals(values: list[float | None], limit: int) -> None:
    limits = StudyLimits(trials_without_progress=limit)
    mirrored = [None if value is None else -value for value in values]
    found = limits.reached(ended(*values), MAXIMIZE, 0)
    assert found == limits.reached(ended(*mirrored), Objective("loss", "minimize"), 0)


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(SpecError, match="max_failed must be positive, got 0"):
        StudyLimits(max_failed=0)

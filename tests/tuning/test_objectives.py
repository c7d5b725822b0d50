"""Thresholds of metrics, and the best of trials."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.tuning.objectives import Objective, Threshold, parse_objectives
from timonel.tuning.records import TrialRecord, TrialStatus, best_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latency_ms <= 20", Threshold("latency_ms", 20, is_upper=True)),
        ("val_recall>=0.9", Threshold("val_recall", 0.9, is_upper=False)),
        (" a/b c <= -1e-3 ", Threshold("a/b c", -1e-3, is_upper=True)),
    ],
)
def test_thresholds(text: str, expected: Threshold) -> None:
    assert Threshold.parse(text) == expected
    assert Threshold.parse(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "latency", "latency < 20", "x <= y", "x <= nan", "<= 3"])
def test_invalid_thresholds(text: str) -> None:
    with pytest.raises(SpecError, match="cannot parse the threshold"):
        Threshold.parse(text)


def test_excess() -> None:
    assert Threshold("a", 2, is_upper=True).excess(5) == 3
    assert Threshold("a", 2, is_upper=False).excess(5) == -3
    assert Threshold("a", 2, is_upper=True).excess(2) == 0


def record(number: int, values: tuple[float, ...], status: TrialStatus) -> TrialRecord:
    return TrialRecord(number, status, {}, values, (), None, "", 0.0, 1.0)


_STATUS: Any = st.sampled_from(get_args(TrialStatus))
_VALUES = st.tuples(st.integers(-3, 3), st.integers(-3, 3))


@given(st.lists(st.tuples(_VALUES, _STATUS), max_size=12))
def test_no_trial_beats_the_best_ones(drawn: list[tuple[tuple[int, int], TrialStatus]]) -> None:
    objectives = (Objective("a"), Objective("b", "minimize"))
    trials = [record(number, values, status) for number, (values, status) in enumerate(drawn)]
    succeeded = [trial for trial in trials if trial.status == "succeeded"]
    best = best_of(trials, objectives)
    assert bool(best) == bool(succeeded)

    def at_least(one: TrialRecord, other: TrialRecord) -> bool:
        return one.values[0] >= other.values[0] and one.values[1] <= other.values[1]

    for trial in succeeded:
        if trial in best:
            assert not any(at_least(o, trial) and o.values != trial.values for o in succeeded)
        else:
            assert any(at_least(each, trial) for each in best)
    assert len({trial.values for trial in best}) == len(best)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_the_first_of_equal_trials_is_the_best(values: list[int]) -> None:
    trials = [record(number, (value,), "succeeded") for number, value in enumerate(values)]
    (best,) = best_of(trials, [Objective("a", "minimize")])
    assert best.number == values.index(min(values))


def test_the_goal_follows_from_the_name_of_a_metric() -> None:
    assert parse_objectives("val_loss", None) == (Objective("val_loss", "minimize"),)
    found = parse_objectives(["val_accuracy", "val_mae"], None)
    assert [each.goal for each in found] == ["maximize", "minimize"]
    assert parse_objectives("val_loss", "maximize") == (Objective("val_loss", "maximize"),)
    assert [each.goal for each in parse_objectives(["a", "b"], ["minimize"])] == ["minimize"] * 2
    with pytest.raises(SpecError, match="'quality' does not show whether larger values are better"):
        parse_objectives("quality", None)

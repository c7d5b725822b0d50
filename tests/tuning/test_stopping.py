from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.tuning.stopping import (
    Curve,
    Goal,
    StoppingRule,
    make_rule,
)
from timonel.tuning.tune_options import RULES

NAMES = [name for name in RULES if name != "none"]
STEPS = 40


def rule_of(name: str, goal: Goal = "maximize", max_steps: int | None = STEPS) -> StoppingRule:
    rule = make_rule(name, goal, max_steps=max_steps)
    assert rule is not None
    return rule


def curve(final: float, *, steps: int = STEPS, speed: float = 8.0, start: float = 0.1) -> Curve:
    """A curve without noise that approaches ``final`` exponentially."""
    return [
        (step, final - (final - start) * math.exp(-step / speed)) for step in range(1, steps + 1)
    ]


def study_curves(seed: int, trials: int = 20, spread: float = 0.4) -> list[Curve]:
    """Noisy curves of different speed and level; they cross, one in six never learns."""
    generator = np.random.default_rng(seed)
    curves: list[Curve] = []
    for _ in range(trials):
        learns = generator.random() > 1 / 6
        final = generator.beta(4, 2) if learns else 0.1
        speed = math.exp(generator.normal(math.log(5), spread))
        steps = np.arange(1, STEPS + 1)
        values = final - (final - 0.1) * np.exp(-steps / speed)
        values += generator.normal(0, 0.01, STEPS)
        curves.append(
            [(int(step), float(value)) for step, value in zip(steps, values, strict=True)]
        )
    return curves


@dataclass(frozen=True)
class Outcome:
    best_is_kept: bool
    saved: float
    regret: float


def simulate(rule: StoppingRule, curves: Sequence[Curve], parallel: int = 4) -> Outcome:
    """Run the curves as trials, ``parallel`` at a time, one step at a time."""
    waiting, running, ended = list(range(len(curves))), dict[int, int](), dict[int, Curve]()
    while waiting or running:
        while waiting and len(running) < parallel:
            running[waiting.pop(0)] = 0
        for trial in list(running):
            running[trial] += 1
            own = curves[trial][: running[trial]]
            others = [curves[each][:count] for each, count in running.items() if each != trial]
            done = len(own) == len(curves[trial])
            if done or rule.should_stop(own, list(ended.values()), others):
                ended[trial] = own
                del running[trial]
    best = max(range(len(curves)), key=lambda trial: curves[trial][-1][1])
    used = sum(map(len, ended.values())) / sum(map(len, curves))
    reached = max(own[-1][1] for own in ended.values())
    return Outcome(len(ended[best]) == len(curves[best]), 1 - used, curves[best][-1][1] - reached)


@pytest.mark.parametrize("name", NAMES)
def test_a_flat_trial_is_stopped_and_the_best_one_is_not(name: str) -> None:
    rule = rule_of(name)
    completed = [curve(0.5 + 0.04 * index) for index in range(10)]
    assert rule.should_stop(curve(0.12)[:14], completed)
    assert not any(rule.should_stop(curve(0.99)[:count], completed) for count in range(STEPS + 1))


@pytest.mark.parametrize("name", NAMES)
def test_the_only_trial_goes_on(name: str) -> None:
    for max_steps in (STEPS, None):
        rule = rule_of(name, max_steps=max_steps)
        assert not any(rule.should_stop(curve(0.1)[:count], []) for count in range(STEPS + 1))


def test_unknown_rules_name_the_nearest() -> None:
    assert make_rule("none", "maximize") is None
    with pytest.raises(SpecError, match="unknown stopping rule 'medain': did you mean 'median'"):
        make_rule("medain", "maximize")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kept", "saved"),
    [
        ("median", 0.95, 0.15),
        ("decay-curve", 0.95, 0.35),
        ("convex", 0.95, 0.35),
        ("hyperband", 0.95, 0.45),
    ],
)
def test_studies_keep_their_best_trial_and_save_steps(name: str, kept: float, saved: float) -> None:
    outcomes = [simulate(rule_of(name), study_curves(seed)) for seed in range(50)]
    assert sum(outcome.best_is_kept for outcome in outcomes) >= kept * len(outcomes)
    assert sum(outcome.saved for outcome in outcomes) >= saved * len(outcomes)
    assert sum(outcome.regret for outcome in outcomes) <= 0.005 * len(outcomes)


@given(
    st.sampled_from(NAMES),
    st.integers(0, 1000),
    st.integers(1, STEPS),
    st.sampled_from([STEPS, None]),
)
def test_goals_mirror_each_other(name: str, seed: int, count: int, max_steps: int | None) -> None:
    own, *completed = study_curves(seed, 12)
    own = own[:count]

    def mirrored(values: Curve) -> Curve:
        return [(step, -value) for step, value in values]

    assert rule_of(name, "maximize", max_steps).should_stop(own, completed) == rule_of(
        name, "minimize", max_steps
    ).should_stop(mirrored(own), list(map(mirrored, completed)))


@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_not_finite_and_repeated_steps_are_ignored(name: str) -> None:
    rule = rule_of(name)
    completed: list[Curve] = [curve(0.5 + 0.04 * index) for index in range(10)]
    bad = [(14, math.nan), (14, math.inf), *curve(0.12)[:14], (15, math.nan)]
    assert rule.should_stop(bad, [*completed, [], [(1, math.nan)]], [[]])
    # A resumed trial reports steps again: the last report of a step counts.
    resumed = [*curve(0.12)[:14], *curve(0.97)[:14]]
    assert not rule.should_stop(resumed, completed)
    assert not rule.should_stop([], completed)
    assert not rule.should_stop([(1, math.nan)] * 9, completed)


@pytest.mark.parametrize("name", NAMES)
def test_equal_trials_go_on(name: str) -> None:
    completed = [curve(0.8)] * 12
    rule = rule_of(name)
    assert not any(rule.should_stop(curve(0.8)[:count], completed) for count in range(STEPS + 1))
    flat = [[(step, 0.1) for step in range(1, STEPS + 1)]] * 12
    assert not any(rule.should_stop(flat[0][:count], flat) for count in range(STEPS + 1))


@pytest.mark.parametrize("name", ["decay-curve", "convex"])
def test_predictions_need_five_measurements_and_a_tenth_of_the_steps(name: str) -> None:
    completed = [curve(0.5 + 0.04 * index, steps=100) for index in range(10)]
    bad = [(step, 0.1) for step in range(1, 100)]
    rule = rule_of(name, max_steps=100)
    assert not rule.should_stop(bad[:9], completed)
    assert rule.should_stop(bad[:10], completed)
    assert not rule.should_stop(bad[9:60:15], completed)


def test_median_needs_five_trials_and_two_measurements() -> None:
    rule = rule_of("median")
    assert not rule.should_stop(curve(0.12)[:9], [curve(0.9)] * 4)
    assert rule.should_stop(curve(0.12)[:2], [curve(0.9)] * 5)
    assert not rule.should_stop(curve(0.12)[:1], [curve(0.9)] * 5)


def test_convex_keeps_a_trial_whose_improvement_accelerates() -> None:
    late = [(step, 0.1 + 0.0004 * step**2) for step in range(1, 21)]
    assert not rule_of("convex").should_stop(late, [curve(0.9)])


def test_hyperband_counts_running_trials_and_fills_its_rungs() -> None:
    rule = rule_of("hyperband", max_steps=27)
    running = [curve(0.9)[:3]] * 8
    assert not rule.should_stop(curve(0.2)[:2], [], running)
    assert not rule.should_stop(curve(0.2)[:3], [], running[1:])
    assert rule.should_stop(curve(0.2)[:3], [], running)
    assert not rule.should_stop(curve(0.2, steps=27)[:3], [curve(0.9, steps=27)], running[1:-1])
    assert rule.should_stop(curve(0.2)[:3], [curve(0.9, steps=27)], running)
    assert rule.should_stop(curve(0.2)[:9], [curve(0.9, steps=27)] * 2)


def test_decay_curve_predicts_within_50_ms() -> None:
    rule = rule_of("decay-curve")
    completed = study_curves(0, 100)
    rule.should_stop(curve(0.5)[:20], completed)  # imports scikit-learn
    times = []
    for _ in range(5):
        start = time.process_time()
        rule.should_stop([(step, 0.3) for step in range(1, 20)], completed)
        times.append(time.process_time() - start)
    assert min(times) < 0.05


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(SpecError, match="must be positive, got 0"):
        make_rule("median", "maximize", max_steps=0)

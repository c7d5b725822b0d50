from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from timonel.errors import SpecError
from timonel.tuning.stopping import (
    RULES,
    Curve,
    Goal,
    StoppingRule,
    make_rule,
)

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


def study_curves(seed: int, trials: int = 30) -> list[Curve]:
    """Noisy curves of different speed and level; they cross, one in six never learns."""
    generator = np.random.default_rng(seed)
    curves: list[Curve] = []
    for _ in range(trials):
        learns = generator.random() > 1 / 6
        final = generator.beta(4, 2) if learns else 0.1
        speed = math.exp(generator.normal(math.log(5), 0.6))
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

"""Rules that stop a trial early, as pure functions of learning curves.

    median        best so far < median of the others' running averages
    decay-curve   P(final value > best final value) < 5 %, by a Gaussian process over the curves
    convex        best so far + recent gain per step * remaining steps < best final value
    hyperband     in the worst third at step max/9, or not in the best third at max/3

No rule stops the best trial, or a trial without others to compare it with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from timonel.errors import SpecError, did_you_mean
from timonel.tuning.decay_curve import Floats, chance_to_beat
from timonel.tuning.tune_options import RULES, Goal

Curve = Sequence[tuple[int, float]]
"""Steps (or epochs) and values of the objective; values that are not finite are ignored."""

_FEWEST_TRIALS = 5
# The median of 5 trials is among the best tenth of all trials in fewer than 1 % of studies
# (3 of 5 by chance: 0.9 %); with 3 trials it would be in 2.8 %.
_FEWEST_MEASUREMENTS = 5
_FEWEST_STEPS = 0.1
_UNLIKELY = 0.05
_COMPLETE = 0.9
_ETA = 3
"""Ratio of the steps of two rungs of hyperband, as its authors name it."""


class StoppingRule(Protocol):
    """A rule that decides whether to stop a running trial.

    Rules keep no state: the same curves give the same decision.
    """

    def should_stop(
        self, curve: Curve, completed: Sequence[Curve], others_running: Sequence[Curve] = ()
    ) -> bool:
        """Decide whether to stop the trial of ``curve`` now.

        Args:
            curve: The trial's measurements so far.
            completed: Curves of the trials that ended, those that were stopped early included.
        """


def make_rule(name: str, goal: Goal, *, max_steps: int | None = None) -> StoppingRule | None:
    """Build a stopping rule by name; ``none`` is None.

    Args:
        max_steps: Last step of a trial, in the unit of its curve. By default the last step of the
            longest completed curve.
    """
    if max_steps is not None and max_steps < 1:
        raise SpecError(f"the maximum number of steps must be positive, got {max_steps}")
    match name:
        case "none":
            return None
        case "median":
            return MedianRule(goal)
        case "decay-curve":
            return DecayCurveRule(goal, max_steps)
        case "convex":
            return ConvexRule(goal, max_steps)
        case "hyperband":
            return HyperbandRule(goal, max_steps)
    hint = did_you_mean(name, RULES) or f"use one of {', '.join(RULES)}"
    raise SpecError(f"unknown stopping rule '{name}'", hint=hint)


@dataclass(frozen=True)
class MedianRule:
    """Median rule of Vertex AI.

    Stop if the trial's best value is strictly below the median of the ended trials' running
    averages up to the same step, after two measurements and with at least five ended trials.
    """

    goal: Goal

    def should_stop(
        self, curve: Curve, completed: Sequence[Curve], others_running: Sequence[Curve] = ()
    ) -> bool:
        """Decide whether to stop the trial of ``curve`` now."""
        del others_running  # Vertex compares with trials that ended.
        own = _scores(curve, self.goal)
        if len(own) < 2:
            return False
        others = [_until(_scores(each, self.goal), own[-1, 0]) for each in completed]
        averages = [float(each[:, 1].mean()) for each in others if len(each)]
        if len(averages) < _FEWEST_TRIALS:
            return False
        best, median = float(own[:, 1].max()), float(np.median(averages))
        # The average of equal values may differ from them by a rounding error.
        return best < median and not math.isclose(best, median)


@dataclass(frozen=True)
class DecayCurveRule:
    """Decay-curve rule of Vertex AI.

    Stop if the final value exceeds the best final value with a probability below 5 %, by a Gaussian
    process, after at least five measurements and a tenth of the steps. Its prior is at least five
    curves that reached nine tenths of the steps.
    """

    goal: Goal
    max_steps: int | None = None

    def should_stop(
        self, curve: Curve, completed: Sequence[Curve], others_running: Sequence[Curve] = ()
    ) -> bool:
        """Decide whether to stop the trial of ``curve`` now."""
        del others_running  # Their final values are unknown.
        case = _forecast(curve, completed, self.goal, self.max_steps)
        if case is None:
            return False
        full = [each for each in case.completed if each[-1, 0] >= _COMPLETE * case.end]
        if len(full) < _FEWEST_TRIALS:
            return False
        return chance_to_beat(case.target, case.own, full, case.end) < _UNLIKELY


@dataclass(frozen=True)
class ConvexRule:
    """Stop a trial that cannot reach the best one while its improvement slows down.

    After at least five measurements and a tenth of the steps: fit a line by least squares to the
    later half of the measurements (at least four). An improvement that slows down continues at most
    at that slope, so the final value is at most ::

        best so far + max(0, slope + 2 standard errors) * remaining steps

    Stop if that is below the best final value. A trial whose later half improves faster than its
    earlier half goes on.
    """

    goal: Goal
    max_steps: int | None = None

    def should_stop(
        self, curve: Curve, completed: Sequence[Curve], others_running: Sequence[Curve] = ()
    ) -> bool:
        """Decide whether to stop the trial of ``curve`` now."""
        del others_running  # Their final values are unknown.
        case = _forecast(curve, completed, self.goal, self.max_steps)
        if case is None:
            return False
        count = len(case.own)
        later = case.own[-max(4, (count + 1) // 2) :]
        slope, error = _slope(later)
        if slope > _slope(case.own[: max(2, count // 2)])[0] and slope > 0:
            return False
        remaining = case.end - case.own[-1, 0]
        return bool(case.own[:, 1].max() + max(0.0, slope + 2 * error) * remaining < case.target)


@dataclass(frozen=True)
class HyperbandRule:
    """Asynchronous successive halving (ASHA), as in Hyperband's brackets of early rungs.

    Rungs are at max_steps / 3 and max_steps / 9. Stop if the trial's best value until its latest
    rung is not in the best third of the trials that reached this rung, running ones included, or at
    max_steps / 9 if it is in the worst third: ranks at so few steps are uncertain. In 50 simulated
    studies, the best third at both rungs lost the best trial in 4 and saved 56 % of the steps;
    this loses it in 1 and saves 49 %. As in a bracket, the rung at max_steps / 3^k compares at
    least 3^k trials.
    """

    goal: Goal
    max_steps: int | None = None

    def should_stop(
        self, curve: Curve, completed: Sequence[Curve], others_running: Sequence[Curve] = ()
    ) -> bool:
        """Decide whether to stop the trial of ``curve`` now."""
        own = _scores(curve, self.goal)
        ended = [_scores(each, self.goal) for each in completed]
        end = _end(ended, self.max_steps)
        if not len(own) or own[-1, 0] >= end:
            return False
        fraction = next((f for f in (_ETA, _ETA**2) if own[-1, 0] * f >= end >= f), None)
        if fraction is None:
            return False
        rung = end / fraction
        peers = ended + [_scores(each, self.goal) for each in others_running]
        at_rung = [_best_at(each, rung) for each in peers if len(each) and each[-1, 0] >= rung]
        count = len(at_rung) + 1
        if count < fraction:
            return False
        better = sum(value > _best_at(own, rung) for value in at_rung)
        share = 1 / _ETA if fraction == _ETA else 1 - 1 / _ETA
        return better >= math.ceil(count * share - 1e-9)


@dataclass(frozen=True)
class _Forecast:
    """A trial to compare with the best final value."""

    own: Floats
    completed: list[Floats]
    target: float
    end: float


def _forecast(
    curve: Curve, completed: Sequence[Curve], goal: Goal, max_steps: int | None
) -> _Forecast | None:
    """Return the comparison, None if it is too early or too late or the trial leads."""
    own = _scores(curve, goal)
    ended = [each for each in (_scores(each, goal) for each in completed) if len(each)]
    if len(own) < _FEWEST_MEASUREMENTS or not ended:
        return None
    end = _end(ended, max_steps)
    target = max(float(each[-1, 1]) for each in ended)
    if not _FEWEST_STEPS * end <= own[-1, 0] < end or own[:, 1].max() >= target:
        return None
    return _Forecast(own, ended, target, end)


def _sign(goal: Goal) -> int:
    return 1 if goal == "maximize" else -1


def _scores(curve: Curve, goal: Goal) -> Floats:
    """Return steps and values [S, 2] by increasing step; greater values are better."""
    # A trial that resumed reports a step again: the last report counts.
    values = {step: _sign(goal) * value for step, value in curve if math.isfinite(value)}
    return np.array(sorted(values.items()), np.float64).reshape(-1, 2)


def _until(scores: Floats, step: float) -> Floats:
    return scores[scores[:, 0] <= step]


def _end(ended: Sequence[Floats], max_steps: int | None) -> float:
    """Return the last step of a full trial, 0 if unknown."""
    return max_steps or max((float(each[-1, 0]) for each in ended if len(each)), default=0.0)


def _best_at(scores: Floats, rung: float) -> float:
    """Return the best value until the first measurement at or after a rung."""
    return float(scores[: 1 + int(np.argmax(scores[:, 0] >= rung)), 1].max())


def _slope(scores: Floats) -> tuple[float, float]:
    """Return the slope of the least-squares line and its standard error."""
    steps, values = (scores - scores.mean(axis=0)).T
    width = float(steps @ steps)
    slope = float(steps @ values) / width
    rest = values - slope * steps
    error = math.sqrt(float(rest @ rest) / max(1, len(scores) - 2) / width)
    return slope, error

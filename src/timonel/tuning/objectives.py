"""Objectives of a study, and thresholds of its metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial

from timonel.errors import SpecError
from timonel.tracking.metric_names import is_larger_better
from timonel.tuning.tune_options import Goal


@dataclass(frozen=True)
class Objective:
    """A metric to optimize.

    Args:
        metric: Name of the metric, such as ``val_accuracy``.
        goal: ``maximize`` or ``minimize``.
    """

    metric: str
    goal: Goal = "maximize"

    def loss(self, value: float) -> float:
        """Return the value, or its negative if greater values are better."""
        return -value if self.goal == "maximize" else value

    def __str__(self) -> str:
        return f"{self.goal} {self.metric}"


@dataclass(frozen=True)
class Threshold:
    """A bound of a metric; trials beyond it are infeasible.

    Args:
        bound: The bound, inclusive.
        is_upper: Whether it is the maximum; otherwise the minimum.
    """

    metric: str
    bound: float
    is_upper: bool

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Parse a threshold such as ``latency_ms <= 20``."""
        found = re.fullmatch(r"\s*(\S.*?)\s*(<=|>=)\s*(\S+)\s*", text)
        try:
            bound = float(found[3]) if found else math.nan
        except ValueError:
            bound = math.nan
        if found is None or not math.isfinite(bound):
            raise SpecError(
                f"cannot parse the threshold {text!r}",
                hint="write it like 'latency_ms <= 20' or 'val_recall >= 0.9'",
            )
        return cls(found[1], bound, found[2] == "<=")

    def excess(self, value: float) -> float:
        """Return the distance of a value beyond the bound; at most 0 within it."""
        return value - self.bound if self.is_upper else self.bound - value

    def __str__(self) -> str:
        return f"{self.metric} {'<=' if self.is_upper else '>='} {self.bound:g}"


def is_infeasible(trial: FrozenTrial) -> bool:
    """Whether a metric of a trial is beyond its threshold."""
    return max(trial.constraints.values(), default=0) > 0


def parse_objectives(
    metric: str | Sequence[str], goal: Goal | Sequence[Goal] | None
) -> tuple[Objective, ...]:
    """Return the objectives of metrics: with goals for all or each, else by their names."""
    metrics = [metric] if isinstance(metric, str) else list(metric)
    if not metrics or len(set(metrics)) < len(metrics):
        raise SpecError("--metric must name each metric once")
    goals = [goal] if isinstance(goal, str) else list(goal or map(_goal_of, metrics))
    if len(goals) == 1:
        goals *= len(metrics)
    if len(goals) != len(metrics):
        raise SpecError(f"{len(metrics)} metrics need as many goals, got {len(goals)}")
    for each in goals:
        if each not in {"maximize", "minimize"}:
            raise SpecError(f"--goal must be 'maximize' or 'minimize', got {each!r}")
    return tuple(Objective(each, wish) for each, wish in zip(metrics, goals, strict=True))


def _goal_of(metric: str) -> Goal:
    larger = is_larger_better(metric)
    if larger is None:
        raise SpecError(
            f"the name {metric!r} does not show whether larger values are better",
            hint="give --goal maximize or --goal minimize",
        )
    return "maximize" if larger else "minimize"

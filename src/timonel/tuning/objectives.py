"""Objectives of a study, and thresholds of its metrics."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from optuna.trial import FrozenTrial

from timonel.errors import SpecError
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
        metric: Name of the metric.
        bound: The bound, inclusive.
        is_upper: Whether it is the maximum; otherwise the minimum.
    """

    metric: str
    bound: float
    is_upper: bool

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Parse a threshold such as ``latency_ms <= 20``.

        Raises:
            SpecError: The text is not a threshold.
        """
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

"""Objectives of a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Goal = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Objective:
    """A metric to optimize.

    Args:
        metric: Name of the metric, such as ``val_accuracy``.
        goal: ``maximize`` or ``minimize``.
    """

    metric: str
    goal: Goal = "maximize"

    def better(self, first: float, second: float) -> bool:
        """Return whether the first value is better than the second."""
        return first > second if self.goal == "maximize" else first < second

"""Objectives of a study."""

from __future__ import annotations

from dataclasses import dataclass

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

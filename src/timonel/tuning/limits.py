"""Limits that end a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from timonel.errors import SpecError
from timonel.tuning.objectives import Objective
from timonel.tuning.records import TrialRecord
from timonel.units import format_seconds


@dataclass(frozen=True)
class StudyLimits:
    """Limits that end a study; None is no limit.

    Args:
        trials: Trials that start.
        max_seconds: Seconds since the study started.
        trials_without_progress: Trials that end in a row without a new best value.
        max_failed: Trials that fail.
    """

    trials: int | None = None
    max_seconds: float | None = None
    trials_without_progress: int | None = None
    max_failed: int | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not limit > 0:
                raise SpecError(
                    f"the study's limit {name} must be positive, got {limit}",
                    hint="leave it out for no limit",
                )

    def reached(
        self, trials: Sequence[TrialRecord], objective: Objective, elapsed_s: float
    ) -> str | None:
        """Return the first limit that is reached, in words, or None.

        Args:
            objective: The first objective of the study.
            elapsed_s: Seconds since the study started.
        """
        failed = sum(trial.status == "failed" for trial in trials)
        if self.max_failed is not None and failed >= self.max_failed:
            return f"{failed} trials failed, the limit is {self.max_failed}"
        if self.trials is not None and len(trials) >= self.trials:
            return f"all {self.trials} trials were started"
        if self.max_seconds is not None and elapsed_s >= self.max_seconds:
            return f"the time limit of {format_seconds(self.max_seconds)} is over"
        idle = _ended_since_best(trials, objective)
        if self.trials_without_progress is not None and idle >= self.trials_without_progress:
            return f"the last {idle} trials did not improve the best value"
        return None


def _ended_since_best(trials: Sequence[TrialRecord], objective: Objective) -> int:
    best, idle = math.inf, 0
    ended = [(trial.ended_at, trial) for trial in trials if trial.ended_at is not None]
    for _, trial in sorted(ended, key=lambda item: item[0]):
        loss = objective.loss(trial.values[0]) if trial.status == "succeeded" else math.inf
        if loss < best:
            best, idle = loss, 0
        else:
            idle += 1
    return idle

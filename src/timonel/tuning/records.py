"""Trials of a study, as read from its storage."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from timonel.tuning.objectives import Objective
from timonel.tuning.parameters import Value

TrialStatus = Literal["running", "succeeded", "stopped early", "infeasible", "failed"]


@dataclass(frozen=True)
class TrialRecord:
    """A trial of a study.

    Args:
        number: Number of the trial, from 0.
        status: State of the trial.
        params: Values by parameter name, fixed ones included.
        values: Objective values in the order of the objectives; empty without a result.
        curve: Values of the first objective by step.
        run_id: The run; None if no job was started.
        reason: Cause of a failure or stop; empty otherwise.
        started_at: Start time, in Unix seconds.
        ended_at: End time, in Unix seconds; None while it runs.
    """

    number: int
    status: TrialStatus
    params: Mapping[str, Value]
    values: tuple[float, ...]
    curve: tuple[tuple[int, float], ...]
    run_id: str | None
    reason: str
    started_at: float
    ended_at: float | None


def best_of(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """Return the best trial; with several objectives, those that no other trial dominates.

    Of equal trials, the first one counts.
    """
    losses = {
        trial.number: tuple(
            objective.loss(value) for objective, value in zip(objectives, trial.values, strict=True)
        )
        for trial in trials
        if trial.status == "succeeded"
    }

    def dominated(number: int) -> bool:
        own = losses[number]
        return any(
            all(map(operator.le, other, own)) and (other != own or another < number)
            for another, other in losses.items()
            if another != number
        )

    return [trial for trial in trials if trial.number in losses and not dominated(trial.number)]

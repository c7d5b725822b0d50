"""Trials of a study, as read from its storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from timonel.tuning.parameters import Value

TrialStatus = Literal["running", "succeeded", "stopped early", "infeasible", "failed"]


@dataclass(frozen=True)
class TrialRecord:
    """A trial of a study.

    Args:
        number: Number of the trial, from 0.
        status: How it stands or ended.
        params: Values by parameter name, fixed ones included.
        values: Objective values in the order of the objectives; empty without a result.
        curve: Values of the first objective by step.
        run_id: The run; None if no job was started.
        reason: Why it failed or was stopped; empty otherwise.
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

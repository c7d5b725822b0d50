"""Record how trials end: their results, or why they have none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import optuna
from optuna.trial import TrialState

from timonel.engines import JobState, JobStatus
from timonel.errors import SpecError, TimonelError
from timonel.styles import number
from timonel.training.handles import Run, check_outcome
from timonel.tuning.curves import LearningCurves
from timonel.tuning.records import TrialStatus
from timonel.tuning.settings import StudySettings
from timonel.tuning.study import PRIOR, REASON, STATUS

WITH_RESULT = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of trials that have values to compare."""


@dataclass(frozen=True)
class Results:
    """Records the results of a study's trials in Optuna's storage.

    Attributes:
        settings: Settings of the study.
        study: The study in Optuna's storage.
        publish: Called with an event, a trial's number and details.
    """

    settings: StudySettings
    study: optuna.Study
    publish: Callable[..., None]

    def record(
        self,
        trial: optuna.Trial,
        curves: LearningCurves,
        status: JobStatus,
        run: Run,
        stopped_by: str,
    ) -> None:
        """Record the result of a trial whose job has ended.

        Args:
            curves: All values that its run recorded.
            stopped_by: Why a rule stopped the job; empty if none did.
        """
        last = curves.last()
        metrics = [objective.metric for objective in self.settings.objectives]
        values = [last.get(metric, math.nan) for metric in metrics]
        if status.state is JobState.STOPPED and stopped_by:
            self.study.tell(trial, state=TrialState.PRUNED)
            self.publish("ended", trial.number, status="stopped early", values=values)
        elif status.state is not JobState.SUCCEEDED:
            self.fail(trial, "failed", _reason(status, run))
        elif problem := curves.problem():
            self.fail(trial, "failed", problem)
        elif missing := [name for name in curves.metrics if name not in last]:
            seen = curves.names()
            reason = f"the run recorded no metric {missing[0]!r}; it recorded: {seen}"
            self.fail(trial, "failed", reason)
            if not self.succeeded():
                option = "--metric" if missing[0] in metrics else "--threshold"
                closest = curves.closest(missing[0])
                raise SpecError(
                    f"trial {trial.number} recorded no metric {missing[0]!r}",
                    hint=closest or f"it recorded: {seen}; name one of them with {option}",
                )
        elif undefined := [name for name in curves.metrics if math.isnan(last[name])]:
            self.fail(trial, "infeasible", f"{undefined[0]} is not a finite number")
        else:
            self._record_result(trial, values, last)

    def _record_result(
        self, trial: optuna.Trial, values: list[float], last: Mapping[str, float]
    ) -> None:
        status: TrialStatus = "succeeded"
        reason = ""
        for threshold in self.settings.thresholds:
            value = last[threshold.metric]
            excess = threshold.excess(value)
            trial.set_constraint(str(threshold), excess)
            if excess > 0:
                beyond = "above" if threshold.is_upper else "below"
                status, reason = (
                    "infeasible",
                    f"{threshold.metric} is {number(value)}, {beyond} {threshold.bound:g}",
                )
        # A trial may succeed although a rule asked it to stop.
        trial.set_user_attr(REASON, reason)
        self.study.tell(trial, values)
        self.publish("ended", trial.number, status=status, values=values, reason=reason)

    def fail(self, trial: optuna.Trial, status: TrialStatus, reason: str) -> None:
        """Record a trial without a result."""
        trial.set_user_attr(STATUS, status)
        trial.set_user_attr(REASON, reason)
        self.study.tell(trial, state=TrialState.FAIL)
        self.publish("ended", trial.number, status=status, reason=reason)

    def succeeded(self) -> int:
        """Return the number of trials of this study that have a result."""
        trials = self.study.get_trials(deepcopy=False, states=WITH_RESULT)
        return sum(PRIOR not in trial.user_attrs for trial in trials)


def _reason(status: JobStatus, run: Run) -> str:
    """Return the end of the error that the job would report, in one line."""
    try:
        check_outcome(status, run)
    except TimonelError as error:
        lines = [line.strip() for line in error.message.splitlines() if line.strip()]
        return "; ".join(lines[-2:] if error.hint else lines[-1:])
    return ""

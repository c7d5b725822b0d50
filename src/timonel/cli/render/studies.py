"""Studies and their trials as tables, lines and JSON."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from timonel.cli.render.output import iso
from timonel.cli.render.study_view import params_text
from timonel.cli.render.tables import pairs, sparkline, status, table
from timonel.cli.render.view import MOMENT, STATUS, Field, View
from timonel.styles import number
from timonel.tuning.records import best_of
from timonel.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from timonel.tuning.records import TrialRecord
    from timonel.tuning.study import Study


class StudyItem:
    """A study whose trials are read once."""

    def __init__(self, study: Study) -> None:
        self.study, self.settings = study, study.settings

    @functools.cached_property
    def trials(self) -> list[TrialRecord]:
        """All trials, oldest first."""
        return self.study.trials

    @property
    def best(self) -> list[TrialRecord]:
        """The best trials."""
        return best_of(self.trials, self.settings.objectives)

    @property
    def state(self) -> str:
        """State in a word."""
        if self.study.is_running:
            return "running"
        is_cut_off = any(trial.status == "running" for trial in self.trials)
        return "interrupted" if is_cut_off else "ended"

    @property
    def progress(self) -> str:
        """Ended and all trials."""
        ended = sum(trial.status != "running" for trial in self.trials)
        return f"{ended}/{self.settings.trials}"


def study_page(study: Study) -> RenderableType:
    """Return a page about a study: facts, then trials with the best first."""
    item = StudyItem(study)
    trials, study_runs = item.trials, study.is_running
    metrics = [objective.metric for objective in study.settings.objectives]
    facts = STUDY.facts(item) | study.facts(trials)
    if priors := collections.Counter(prior.rpartition("/")[0] for prior in study.priors):
        facts["prior results"] = ", ".join(f"{n} of {name}" for name, n in priors.items())
    rows = [
        (
            trial.number,
            status(trial.status if study_runs or trial.ended_at else "unfinished"),
            *(trial.values or (None,) * len(metrics)),
            sparkline([value for _, value in trial.curve], 12),
            params_text(trial.params),
            _duration(trial),
            trial.run_id,
        )
        for trial in study.best_first(trials)
    ]
    headers = ("TRIAL", "STATUS", *metrics, "CURVE", "PARAMETERS", "TIME", "RUN")
    trials_table = table(headers, rows, wide=headers.index("PARAMETERS"))
    reasons = _reasons(trials)
    why = (Text(""), pairs(reasons)) if reasons else ()
    return Group(pairs(facts), Text(""), trials_table, *why)


def best_line(study: Study) -> str:
    """Describe the best trials of a study, one in each line."""
    best = study.best_trials
    if not best:
        return f"no trial of the study {study.name} has succeeded"
    metrics = [objective.metric for objective in study.settings.objectives]
    return "\n".join(
        f"trial {trial.number}: "
        + ", ".join(
            f"{metric} {number(value)}" for metric, value in zip(metrics, trial.values, strict=True)
        )
        + f" with {params_text(trial.params)} ({trial.run_id})"
        for trial in best
    )


def trial_json(study: Study, trial: TrialRecord) -> dict[str, Any]:
    """Return a trial as JSON."""
    metrics = [objective.metric for objective in study.settings.objectives]
    return {
        "number": trial.number,
        "status": trial.status,
        "params": dict(trial.params),
        "values": dict(zip(metrics, trial.values, strict=False)),
        "run": trial.run_id,
        "reason": trial.reason or None,
        "started_at": iso(trial.started_at),
        "ended_at": iso(trial.ended_at),
    }


def _reasons(trials: Iterable[TrialRecord]) -> dict[str, str]:
    """Return the reasons of failed and infeasible trials, by the numbers of their trials."""
    numbers = collections.defaultdict(list)
    for trial in trials:
        if trial.status in {"failed", "infeasible"} and trial.reason:
            numbers[trial.reason].append(str(trial.number))
    return {f"trial {', '.join(found)}": reason for reason, found in numbers.items()}


def _duration(trial: TrialRecord) -> str | None:
    return None if trial.ended_at is None else format_seconds(trial.ended_at - trial.started_at)


STUDY = View(
    Field("name", get=lambda item: item.study.name, column="STUDY", line="study"),
    Field("state", STATUS, column="STATUS", line="status"),
    Field("running", get=lambda item: item.study.is_running),
    Field(column="TRIALS", shown=lambda item: item.progress),
    Field(column="METRIC", shown=lambda item: item.settings.objectives[0].metric),
    Field(column="BEST", shown=lambda item: item.best[0].values[0] if item.best else None),
    Field("created_at", MOMENT, lambda item: item.settings.created_at, column="STARTED"),
    Field("entry", get=lambda item: item.settings.entry),
    Field(
        "objectives",
        get=lambda item: [{"metric": o.metric, "goal": o.goal} for o in item.settings.objectives],
    ),
    Field("algorithm", get=lambda item: item.settings.options["algorithm"]),
    Field("best", get=lambda item: [trial.number for trial in item.best]),
    Field("trials", get=lambda item: [trial_json(item.study, trial) for trial in item.trials]),
    Field("message", get=lambda _: None, column="REASON", is_optional=True),
    wide="STUDY",
    unreadable="unreachable",
)

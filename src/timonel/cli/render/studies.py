"""Studies and their trials as tables, lines and JSON."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from timonel.cli.render.output import iso
from timonel.cli.render.study_view import params_text
from timonel.cli.render.tables import pairs, sparkline, status, table
from timonel.cli.render.view import MOMENT, STATUS, Field, Once, View
from timonel.styles import number
from timonel.tuning.records import best_of
from timonel.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from timonel.tuning.records import TrialRecord
    from timonel.tuning.study import Study


def study_page(study: Study) -> RenderableType:
    """Return a page about a study: facts, then trials with the best first."""
    item = Once(study)
    study_runs, trials = item.is_running, item.trials
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


def _state(study: Study) -> str:
    if study.is_running:
        return "running"
    is_cut_off = any(trial.status == "running" for trial in study.trials)
    return "interrupted" if is_cut_off else "ended"


def _progress(study: Study) -> str:
    return f"{sum(each.status != 'running' for each in study.trials)}/{study.settings.trials}"


def _best(study: Study) -> list[TrialRecord]:
    return best_of(study.trials, study.settings.objectives)


STUDY = View(
    Field("name", column="STUDY", line="study"),
    Field("state", STATUS, _state, column="STATUS", line="status"),
    Field("running", get=lambda study: study.is_running),
    Field(column="TRIALS", shown=_progress),
    Field(column="METRIC", shown=lambda study: study.settings.objectives[0].metric),
    Field(column="BEST", shown=lambda study: _best(study)[0].values[0] if _best(study) else None),
    Field("created_at", MOMENT, lambda study: study.settings.created_at, column="STARTED"),
    Field("entry", get=lambda study: study.settings.entry),
    Field(
        "objectives",
        get=lambda study: [{"metric": o.metric, "goal": o.goal} for o in study.settings.objectives],
    ),
    Field("algorithm", get=lambda study: study.settings.options["algorithm"]),
    Field("best", get=lambda study: [trial.number for trial in _best(study)]),
    Field("trials", get=lambda study: [trial_json(study, trial) for trial in study.trials]),
    Field("message", get=lambda _: None, column="REASON", is_optional=True),
    wide="REASON",
    unreadable="unreachable",
)

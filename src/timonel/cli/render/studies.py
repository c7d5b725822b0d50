"""Studies and their trials as tables, lines and JSON."""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from timonel.cli.render.output import clock, iso
from timonel.cli.render.study_view import params_text
from timonel.cli.render.tables import pairs, sparkline, status, table
from timonel.errors import TimonelError
from timonel.styles import number
from timonel.tuning.records import best_of
from timonel.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from timonel.tuning.records import TrialRecord
    from timonel.tuning.study import Study

_logger = logging.getLogger(__name__)


def study_list(studies: Iterable[Study]) -> Table:
    """Return a table of studies."""
    rows = []
    for study in studies:
        settings = study.settings
        state, ended, value = "unreachable", "-", None
        try:
            trials = study.trials
        except TimonelError as error:  # of a database that is down, for example
            _logger.warning("%s: %s", study.name, error)
        else:
            state = _study_status(study, trials)
            ended = str(sum(trial.status != "running" for trial in trials))
            best = best_of(trials, settings.objectives)
            value = best[0].values[0] if best else None
        rows.append(
            (
                study.name,
                status(state),
                f"{ended}/{settings.trials}",
                settings.objectives[0].metric,
                value,
                clock(settings.created_at),
            )
        )
    return table(("STUDY", "STATUS", "TRIALS", "METRIC", "BEST", "STARTED"), rows)


def list_json(studies: Iterable[Study]) -> list[dict[str, Any]]:
    """Return studies as JSON, without the trials of those that cannot be read."""
    found = []
    for study in studies:
        try:
            found.append(study_json(study))
        except TimonelError as error:
            found.append({"name": study.name, "running": study.is_running, "error": str(error)})
    return found


def study_page(study: Study) -> RenderableType:
    """Return a page about a study: facts, then trials with the best first."""
    trials = study.trials
    state = _study_status(study, trials)
    study_runs = state == "running"
    metrics = [objective.metric for objective in study.settings.objectives]
    facts = {
        "study": study.name,
        "status": state,
        **study.facts(trials),
    }
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


def study_json(study: Study) -> dict[str, Any]:
    """Return a study as JSON."""
    settings = study.settings
    return {
        "name": study.name,
        "running": study.is_running,
        "created_at": iso(settings.created_at),
        "entry": settings.entry,
        "objectives": [{"metric": o.metric, "goal": o.goal} for o in settings.objectives],
        "algorithm": settings.options["algorithm"],
        "best": [trial.number for trial in study.best_trials],
        "trials": [trial_json(study, trial) for trial in study.trials],
    }


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


def _study_status(study: Study, trials: Iterable[TrialRecord]) -> str:
    if study.is_running:
        return "running"
    return "interrupted" if any(trial.status == "running" for trial in trials) else "ended"


def _reasons(trials: Iterable[TrialRecord]) -> dict[str, str]:
    """Return the reasons of failed and infeasible trials, by the numbers of their trials."""
    numbers = collections.defaultdict(list)
    for trial in trials:
        if trial.status in {"failed", "infeasible"} and trial.reason:
            numbers[trial.reason].append(str(trial.number))
    return {f"trial {', '.join(found)}": reason for reason, found in numbers.items()}


def _duration(trial: TrialRecord) -> str | None:
    return None if trial.ended_at is None else format_seconds(trial.ended_at - trial.started_at)

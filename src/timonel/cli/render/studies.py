"""Studies and their trials as tables, lines and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from timonel.cli.render.output import clock, iso
from timonel.cli.render.tables import pairs, sparkline, status, table
from timonel.styles import number
from timonel.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from timonel.tuning.records import TrialRecord
    from timonel.tuning.study import Study


class StudyView:
    """Prints a line for each trial that starts and ends.

    Args:
        screen: Where to print.
        metric: The first objective.
    """

    def __init__(self, screen: Console, metric: str) -> None:
        self._screen = screen
        self._metric = metric

    def notify(self, event: str, trial: int, facts: Mapping[str, Any]) -> None:
        """Print what happened to a trial."""
        if event == "started":
            self._say(f"trial {trial} started: {_params(facts['params'])}")
        elif event == "ended":
            result = facts.get("reason") or f"{self._metric} {number(facts['values'][0])}"
            self._say(f"trial {trial} {facts['status']}: {result}")

    def _say(self, line: str) -> None:
        self._screen.print(line, soft_wrap=True, markup=False)


def study_list(studies: Iterable[Study]) -> Table:
    """Return a table of studies."""
    rows = []
    for study in studies:
        trials, best = study.trials, study.best_trials
        rows.append(
            (
                study.name,
                status("running" if study.is_running else "ended"),
                f"{sum(t.status != 'running' for t in trials)}/{study.settings.trials}",
                study.settings.objectives[0].metric,
                best[0].values[0] if best else None,
                clock(study.settings.created_at),
            )
        )
    return table(("STUDY", "STATUS", "TRIALS", "METRIC", "BEST", "STARTED"), rows)


def study_page(study: Study) -> RenderableType:
    """Return a page about a study: facts, then trials with the best first."""
    settings, trials = study.settings, study.trials
    metrics = [objective.metric for objective in settings.objectives]
    facts = {
        "study": study.name,
        "status": "running" if study.is_running else "ended",
        "script": settings.entry,
        "goal": ", ".join(f"{each.goal} {each.metric}" for each in settings.objectives),
        "algorithm": settings.options["algorithm"],
        "trials": f"{sum(t.status != 'running' for t in trials)} of {settings.trials}",
    }
    rows = [
        (
            trial.number,
            status(trial.status),
            *(trial.values or (None,) * len(metrics)),
            sparkline([value for _, value in trial.curve], 12),
            _params(trial.params) + (f"  ({trial.reason})" if trial.reason else ""),
            _duration(trial),
            trial.run_id,
        )
        for trial in study.best_first(trials)
    ]
    headers = ("TRIAL", "STATUS", *metrics, "CURVE", "PARAMETERS", "TIME", "RUN")
    return Group(pairs(facts), Text(""), table(headers, rows, wide=headers.index("PARAMETERS")))


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
        + f" with {_params(trial.params)} ({trial.run_id})"
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


def _duration(trial: TrialRecord) -> str | None:
    return None if trial.ended_at is None else format_seconds(trial.ended_at - trial.started_at)


def _params(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={number(value) if isinstance(value, float) else value}"
        for name, value in values.items()
    )

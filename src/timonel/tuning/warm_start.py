"""Warm start: results of earlier studies as a prior, parameters of runs as first trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState, create_trial

from timonel.errors import NotFoundError, SpecError
from timonel.storage import Workspace
from timonel.tracking import RunRecord, read_run
from timonel.tuning.objectives import Objective
from timonel.tuning.parameters import Parameter, Value
from timonel.tuning.records import TrialRecord
from timonel.tuning.samplers import LEARNING
from timonel.tuning.space import SearchSpace
from timonel.tuning.studies import open_study
from timonel.tuning.study import PRIOR, Study


@dataclass(frozen=True)
class WarmStart:
    """Prior results and first points of a study.

    Attributes:
        priors: Results of earlier studies, as trials for Optuna.
        points: Parameters of the first trials, by Optuna's names; the algorithm chooses the others.
    """

    priors: tuple[FrozenTrial, ...] = ()
    points: tuple[Mapping[str, Any], ...] = ()


def read_warm_start(
    workspace: Workspace,
    sources: Sequence[str],
    space: SearchSpace,
    objectives: Sequence[Objective],
    algorithm: str,
) -> WarmStart:
    """Read prior results from studies, and first points from runs.

    Args:
        sources: Names of studies, and IDs of runs.
    """
    priors: list[FrozenTrial] = []
    points: list[Mapping[str, Any]] = []
    for source in dict.fromkeys(sources):
        if algorithm == "grid":
            raise SpecError("the algorithm grid has no warm start, as it tries every point once")
        study = _study(workspace, source)
        if study is None:
            points.append(_point(_run(workspace, source), space))
        elif algorithm not in LEARNING:
            raise SpecError(
                f"the algorithm {algorithm} does not learn from the results of {study.name}",
                hint=f"use {', '.join(LEARNING)}, or start from a run",
            )
        else:
            priors += _results(study, space, objectives)
    return WarmStart(tuple(priors), tuple(points))


def _results(
    study: Study, space: SearchSpace, objectives: Sequence[Objective]
) -> list[FrozenTrial]:
    if study.settings.objectives != tuple(objectives):
        theirs = ", ".join(map(str, study.settings.objectives))
        raise SpecError(
            f"the study {study.name} has other objectives: {theirs}",
            hint="start from a study of the same metrics and goals",
        )
    fitting = [
        create_trial(
            state=TrialState.COMPLETE,
            params=params,
            distributions={name: space.distributions()[name] for name in params},
            values=trial.values,
            intermediate_values=dict(trial.curve) if len(objectives) == 1 else None,
            user_attrs={PRIOR: f"{study.name}/{trial.number}"},
        )
        for trial in study.trials
        if trial.status == "succeeded" and (params := _fitting(trial, space)) is not None
    ]
    if not fitting:
        raise SpecError(
            f"no result of the study {study.name} lies in the search space",
            hint="give its parameters and fixed values, and ranges that contain its best trials",
        )
    return fitting


def _fitting(trial: TrialRecord, space: SearchSpace) -> dict[str, Any] | None:
    """Return a trial's parameters by Optuna's names; None if the space lacks its point."""
    try:
        params = space.params_of(trial.params)
    except SpecError:
        return None
    point = space.values_of(params)
    active = {each.name for each in space.parameters if space.is_active(each, point)}
    same = active <= point.keys() and point == dict(trial.params)
    return params if same and space.violated(point) is None else None


def _study(workspace: Workspace, name: str) -> Study | None:
    try:
        return open_study(workspace, name)
    except NotFoundError:
        return None


def _run(workspace: Workspace, ref: str) -> RunRecord:
    try:
        return read_run(workspace, ref)
    except (NotFoundError, OSError):  # a name that no file can have
        raise NotFoundError(
            f"no study or run {ref!r} in this workspace",
            hint="'timonel studies' lists the studies, 'timonel runs' the runs",
        ) from None


def _point(run: RunRecord, space: SearchSpace) -> dict[str, Any]:
    values = {
        parameter.name: _value(parameter, run.params[parameter.name])
        for parameter in space.parameters
        if parameter.name in run.params
    }
    try:
        point = space.params_of(values)
    except SpecError as error:
        raise SpecError(
            f"the run {run.id} cannot be tried first: {error.message}",
            hint="widen the range, or start from another run",
        ) from error
    if not point:
        raise SpecError(
            f"the run {run.id} has none of the study's parameters",
            hint=f"it has {', '.join(map(str, run.params)) or 'none'}",
        )
    return point


def _value(parameter: Parameter, recorded: object) -> Value:
    """Return the value of a parameter that a run recorded as a number or a text."""
    for choice in parameter.values:
        if str(choice) == str(recorded):
            return choice
    try:
        number = float(str(recorded))
    except ValueError:
        return str(recorded)
    return round(number) if parameter.kind == "integer" and number.is_integer() else number

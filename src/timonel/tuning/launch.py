"""Start and continue studies."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, cast

import optuna

from timonel.engines import DEFAULT_ENGINE, get_engine
from timonel.errors import Interrupted, SpecError
from timonel.options import documented, with_defaults
from timonel.processes.cores import usable_cores
from timonel.storage import Workspace, exclusive, find_workspace
from timonel.storage.locks import LockedError
from timonel.storage.workspace import bucket_error
from timonel.training.handles import Run
from timonel.training.job import roles
from timonel.training.launch import submit
from timonel.training.request import JOB_OPTION_NAMES, JobOptions, Request, check_request
from timonel.training.settings import settings_of
from timonel.tuning.controller import Controller, Notify
from timonel.tuning.objectives import Objective
from timonel.tuning.param_text import parse_space
from timonel.tuning.samplers import make_sampler
from timonel.tuning.settings import StudySettings
from timonel.tuning.shares import GPUS, gpus_of_slot, threads_per_process, visible_gpus
from timonel.tuning.space import SearchSpace, Value
from timonel.tuning.stopping import make_rule
from timonel.tuning.storage import repair_journal, storage_errors
from timonel.tuning.study import (
    Study,
    create_study,
    open_study,
)
from timonel.tuning.tensorboard import hypertune_file
from timonel.tuning.tune_options import Goal, TuneOptions
from timonel.tuning.warm_start import read_warm_start

logger = logging.getLogger(__name__)
_UNSUPPORTED = ("cluster", "task_type", "task_index", "launcher")


@documented(TuneOptions)
def tune(  # noqa: PLR0913 - the public function: all but three are optional
    entry: str | os.PathLike[str],
    space: SearchSpace | Sequence[str] | Mapping[str, str],
    metric: str | Sequence[str],
    *,
    data: str | os.PathLike[str] | Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    workspace: Workspace | str | os.PathLike[str] | None = None,
    on: str | None = None,
    notify: Notify | None = None,
    **options: Unpack[TuneOptions],
) -> Study:
    """Search for the best parameters of a training program.

    Each trial is a training job that receives its parameters as flags: ``--lr=0.01``.

    Args:
        entry: A script, a notebook, or the name of a module.
        space: A search space, or texts such as ``lr=log(1e-4,1e-1)``.
        metric: The recorded metric to optimize, or several.
        data: A converted dataset, or several by name.
        args: Further arguments of the script.
        workspace: A workspace or its location.
        on: Name of the engine that runs trials; by default this machine.
        notify: Callback for events of trials.
        **options: See `TuneOptions`.

    Raises:
        NotFoundError: The script or a dataset does not exist.
        SpecError: An argument is invalid, or the trials do not record the metric.
        AlreadyExistsError: A study of this name exists.
        DataError: The storage of the trials fails.
        UserCodeError: The first trials failed.
        Interrupted: The study was stopped; `resume` continues it.
    """
    found = workspace if isinstance(workspace, Workspace) else find_workspace(workspace)
    if found.is_remote:
        raise bucket_error("tune", found.uri)
    given = with_defaults(TuneOptions, options)
    settings = StudySettings(
        name=given["study"] or time.strftime("study-%Y%m%d-%H%M%S", time.gmtime()),
        created_at=time.time(),
        entry=os.fspath(entry),
        working_dir=str(Path.cwd()),
        data=_texts(data),
        args=tuple(args),
        engine=on or DEFAULT_ENGINE,
        space=_space(space, given["constraints"]).to_json(),
        objectives=_objectives(metric, given["goal"]),
        options=dict(given),
    )
    if given["parallel"] < 1:
        raise SpecError(f"--parallel must be at least 1, got {given['parallel']}")
    settings.limits, settings.thresholds  # noqa: B018 - checks them
    start = read_warm_start(
        found, given["start_from"], settings.search_space, settings.objectives, given["algorithm"]
    )
    # Its checks come before the study exists.
    controller = _controller(Study(found, settings), notify)
    create_study(found, settings, start.priors, start.points)
    _run(controller)
    return controller.study


def resume(
    name: str,
    *,
    trials: int | None = None,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    notify: Notify | None = None,
) -> Study:
    """Continue a study, with the trials that were running.

    Args:
        name: Name of the study.
        trials: Number of trials, earlier ones included; unchanged by default.
        workspace: A workspace or its location.
        notify: Callback for events of trials.

    Raises:
        NotFoundError: No such study exists.
        SpecError: Another process runs it, or it was started in another folder.
        Interrupted: The study was stopped again.
    """
    found = workspace if isinstance(workspace, Workspace) else find_workspace(workspace)
    study = open_study(found, name)
    settings = study.settings
    if Path.cwd() != Path(settings.working_dir):
        raise SpecError(
            f"the study {study.name} was started in {settings.working_dir}",
            hint=f"resume it there: cd {shlex.quote(settings.working_dir)}",
        )
    if trials is not None:
        options = {**settings.options, "trials": trials}
        study = Study(found, settings.model_copy(update={"options": options}))
    _run(_controller(study, notify))
    return study


def _run(controller: Controller) -> None:
    study = controller.study
    try:
        with exclusive(study.lock, timeout_s=1):  # readers of `is_running` hold it briefly
            if study.settings.options["storage"] is None:
                repair_journal(study.folder)
            study.save()
            with storage_errors(study.name):
                limit = controller.run()
        logger.info("the study %s ended: %s", study.name, limit)
    except KeyboardInterrupt:
        raise Interrupted(
            f"the study {study.name} was interrupted",
            hint=f"'timonel studies resume {study.name}' continues it",
        ) from None
    except LockedError:
        raise SpecError(
            f"another process runs the study {study.name}",
            hint=f"follow it with 'timonel studies show {study.name}'",
        ) from None


def _controller(study: Study, notify: Notify | None) -> Controller:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings = study.settings
    options = cast("TuneOptions", settings.options)
    space = settings.search_space
    several = len(settings.objectives) > 1
    if several and options["stopping_rule"] != "none":
        raise SpecError("--stopping-rule supports one objective only")
    request, job_options = _request(settings, _example(space))
    rule = make_rule(
        options["stopping_rule"], settings.objectives[0].goal, max_steps=options["max_steps"]
    )
    sampler = make_sampler(
        options["algorithm"],
        space,
        seed=options["seed"],
        objectives=len(settings.objectives),
        earlier_trials=study.trial_count,
    )
    engine = get_engine(settings.engine, study.workspace)
    shares = engine.shares_machine and options["parallel"] > 1
    gpus = visible_gpus(os.environ) if shares else ()
    processes = options["parallel"] * sum(role.replicas for role in roles(request.settings))
    if shares and not gpus:
        _warn_of_cores(processes)

    def start(values: Mapping[str, Value], run_id: str, slot: int) -> Run:
        trial = replace(request, params={name: str(value) for name, value in values.items()})
        share = gpus_of_slot(gpus, slot, options["parallel"])
        reports = hypertune_file(study.workspace.jobs / run_id)
        return submit(
            trial,
            study.workspace,
            engine,
            job_options,
            run_id=run_id,
            parent=study.name,
            env={
                **({GPUS: ",".join(share)} if share else {}),
                "CLOUD_ML_HP_METRIC_FILE": str(reports),
                "CLOUD_ML_HP_METRIC_TAG": settings.objectives[0].metric,
            },
        )

    return Controller(study, engine, sampler, start, rule, notify)


def _request(settings: StudySettings, example: Mapping[str, Value]) -> tuple[Request, JobOptions]:
    """Check the request of the trials' jobs before the study exists."""
    given = settings.options
    for name in _UNSUPPORTED:
        if given[name] not in (None, "processes"):
            raise SpecError(f"studies do not support --{name.replace('_', '-')}")
    training = settings_of(given)
    if given["parallel"] > 1 and given["threads"] is None:
        processes = sum(role.replicas for role in roles(training))
        share = threads_per_process(usable_cores(), given["parallel"], processes)
        training = settings_of({**given, "threads": share})
    request = check_request(
        settings.entry,
        data=settings.data,
        settings=training,
        params=example,
        args=settings.args,
        pass_job_dir=bool(given["pass_job_dir"]),
    )
    return request, JobOptions.of(**{name: given[name] for name in JOB_OPTION_NAMES})


def _warn_of_cores(processes: int) -> None:
    cores = usable_cores()
    if processes > cores:
        logger.warning(
            "%d parallel processes share %g cores, so each trial takes longer. "
            "Use a smaller --parallel.",
            processes,
            cores,
        )


def _example(space: SearchSpace) -> dict[str, Value]:
    """Return values of all parameters, to check their names."""
    return {**{each.name: each.from_unit(0.5) for each in space.parameters}, **space.fixed}


def _space(
    space: SearchSpace | Sequence[str] | Mapping[str, str], constraints: Sequence[str]
) -> SearchSpace:
    if isinstance(space, SearchSpace):
        return space
    texts = (
        [f"{name}={text}" for name, text in space.items()]
        if isinstance(space, Mapping)
        else list(space)
    )
    return parse_space(texts, constraints)


def _objectives(metric: str | Sequence[str], goal: Goal | Sequence[Goal]) -> tuple[Objective, ...]:
    metrics = [metric] if isinstance(metric, str) else list(metric)
    goals: list[Goal] = [goal] * len(metrics) if isinstance(goal, str) else list(goal)
    if not metrics or len(set(metrics)) < len(metrics):
        raise SpecError("--metric must name each metric once")
    if len(goals) == 1:
        goals *= len(metrics)
    if len(goals) != len(metrics):
        raise SpecError(f"{len(metrics)} metrics need as many goals, got {len(goals)}")
    for each in goals:
        if each not in {"maximize", "minimize"}:
            raise SpecError(f"--goal must be 'maximize' or 'minimize', got {each!r}")
    return tuple(Objective(each, wish) for each, wish in zip(metrics, goals, strict=True))


def _texts(
    data: str | os.PathLike[str] | Mapping[str, str] | None,
) -> str | dict[str, str] | None:
    if data is None or isinstance(data, str):
        return data
    return os.fspath(data) if isinstance(data, os.PathLike) else dict(data)

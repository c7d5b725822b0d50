"""Start and continue studies."""

from __future__ import annotations

import base64
import logging
import os
import pickle
import shlex
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, cast

import optuna

from timonel.arguments import checked
from timonel.engines import DEFAULT_ENGINE, Engine, get_engine
from timonel.errors import Interrupted, SpecError
from timonel.options import documented, with_defaults
from timonel.processes.cores import usable_cores
from timonel.storage import Workspace, digest_bytes, find_workspace
from timonel.storage.locks import LockedError
from timonel.training.entries import Entry
from timonel.training.functions import by_value, call_of, described
from timonel.training.handles import Run
from timonel.training.job import roles
from timonel.training.launch import submit
from timonel.training.request import JobOptions, TrainingRequest, check_request
from timonel.training.settings import settings_of
from timonel.tuning.controller import Notify, StudyController
from timonel.tuning.objectives import parse_objectives
from timonel.tuning.param_text import parse_space
from timonel.tuning.samplers import make_sampler
from timonel.tuning.settings import StudySettings
from timonel.tuning.shares import GPUS, gpus_of_slot, threads_per_process, visible_gpus
from timonel.tuning.space import SearchSpace, Value
from timonel.tuning.stopping import make_rule
from timonel.tuning.storage import storage_errors
from timonel.tuning.studies import create_study, open_study
from timonel.tuning.study import Study
from timonel.tuning.tensorboard import HYPERTUNE
from timonel.tuning.tune_options import TuneOptions
from timonel.tuning.warm_start import read_warm_start

logger = logging.getLogger(__name__)
_UNSUPPORTED = ("cluster", "task_type", "task_index", "launcher")


@checked()
@documented(TuneOptions)
def tune(  # noqa: PLR0913 - the public function: all but three are optional
    entry: Entry,
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

    Each trial is a training job that receives its parameters as flags: ``--lr=0.01``; a function
    receives them as keywords, and records metrics as a script does.

    Args:
        entry: A script, a notebook, the name of a module, or a function.
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
    found = find_workspace(workspace)
    given = with_defaults(TuneOptions, options)
    settings = StudySettings(
        id=uuid.uuid4().hex,
        name=given["study"] or time.strftime("study-%Y%m%d-%H%M%S", time.gmtime()),
        created_at=time.time(),
        entry=described(entry) if callable(entry) else os.fspath(entry),
        function=base64.encodebytes(by_value(entry, {})) if callable(entry) else None,
        working_dir=str(Path.cwd()),
        data=_texts(data),
        args=tuple(args),
        engine=on or DEFAULT_ENGINE,
        space=_space(space, given["constraints"]).to_json(),
        objectives=parse_objectives(metric, given["goal"]),
        options=dict(given),
    )
    if given["parallel"] < 1:
        raise SpecError(f"--parallel must be at least 1, got {given['parallel']}")
    settings.limits, settings.thresholds  # noqa: B018 - checks them
    start = read_warm_start(
        found, given["start_from"], settings.search_space, settings.objectives, given["algorithm"]
    )
    # Its checks come before the study exists.
    controller = _controller(Study(found, settings), 0, notify)
    create_study(found, controller.study.settings, start.priors, start.points)
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
        SpecError: Another process runs it, or its script or data are not here.
        Interrupted: The study was stopped again.
    """
    found = find_workspace(workspace)
    study = open_study(found, name)
    settings = study.settings
    if trials is not None:
        options = {**settings.options, "trials": trials}
        study = Study(found, settings.model_copy(update={"options": options}))
    _run(_controller(study, study.trial_count, notify))
    return study


def _run(controller: StudyController) -> None:
    study = controller.study
    try:
        with study.controlled(), storage_errors(study.name):
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


def _controller(study: Study, earlier_trials: int, notify: Notify | None) -> StudyController:
    """Return the controller of a study; check its settings, and note the digests of its inputs."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings = study.settings
    options = cast("TuneOptions", settings.options)
    space = settings.search_space
    several = len(settings.objectives) > 1
    if several and options["stopping_rule"] != "none":
        raise SpecError("--stopping-rule supports one objective only")
    engine = get_engine(settings.engine, study.workspace)
    is_moved = _is_moved(settings, engine)
    request, job_options = _request(settings, _example(space), engine)
    digests = _digests(request)
    if is_moved:
        _check_same(settings, digests)
    study = Study(study.workspace, settings.model_copy(update={"digests": digests}))
    rule = make_rule(
        options["stopping_rule"], settings.objectives[0].goal, max_steps=options["max_steps"]
    )
    sampler = make_sampler(
        options["algorithm"],
        space,
        seed=options["seed"],
        objectives=len(settings.objectives),
        earlier_trials=earlier_trials,
    )
    shares = engine.shares_machine and options["parallel"] > 1
    gpus = visible_gpus(os.environ) if shares else ()
    processes = options["parallel"] * sum(role.replicas for role in roles(request.settings))
    if shares and not gpus:
        _warn_of_cores(processes)

    def start(values: Mapping[str, Value], run_id: str, slot: int) -> Run:
        trial = _trial(request, values)
        share = gpus_of_slot(gpus, slot, options["parallel"])
        return submit(
            trial,
            study.workspace,
            engine,
            job_options,
            run_id=run_id,
            parent=study.name,
            env={
                **({GPUS: ",".join(share)} if share else {}),
                "CLOUD_ML_HP_METRIC_FILE": HYPERTUNE,
                "CLOUD_ML_HP_METRIC_TAG": settings.objectives[0].metric,
            },
        )

    return StudyController(study, engine, sampler, start, rule, notify)


def _trial(request: TrainingRequest, values: Mapping[str, Value]) -> TrainingRequest:
    """Return the request of a trial: a function takes the values, a program their texts."""
    if (function := request.program.function) is not None:
        return replace(request, params=dict(values), call=call_of(function, values))
    return replace(request, params={name: str(value) for name, value in values.items()})


def _is_moved(settings: StudySettings, engine: Engine) -> bool:
    """Return whether a study continues in another folder than it was started in."""
    folder = Path(settings.working_dir)
    if folder == Path.cwd():
        return False
    # Jobs of a cluster take the program from the bucket; another machine has it elsewhere.
    if engine.shares_machine or folder.is_dir():
        raise SpecError(
            f"the study {settings.name} was started in {folder}",
            hint=f"resume it there: cd {shlex.quote(settings.working_dir)}",
        )
    return True


def _check_same(settings: StudySettings, digests: Mapping[str, str]) -> None:
    """Check that script and datasets are those of the study's earlier trials."""
    for name in settings.digests.keys() | digests.keys():
        if settings.digests.get(name) != digests.get(name):
            raise SpecError(
                f"{name} differs from that of the study {settings.name}",
                hint="resume it in a folder with the same script and data",
            )


def _digests(request: TrainingRequest) -> dict[str, str]:
    program = request.program
    return {
        **({program.name: digest_bytes(program.source)} if program.source else {}),
        **{f"the dataset {name}".strip(): each.digest for name, each in request.datasets.items()},
    }


def _request(
    settings: StudySettings, example: Mapping[str, Value], engine: Engine
) -> tuple[TrainingRequest, JobOptions]:
    """Check the request of the trials' jobs before the study exists."""
    given = settings.options
    for name in _UNSUPPORTED:
        if given[name] not in (None, "processes"):
            raise SpecError(f"studies do not support --{name.replace('_', '-')}")
    training = settings_of(given)
    divides = engine.shares_machine and given["parallel"] > 1 and given["strategy"] != "none"
    if divides and given["threads"] is None:
        processes = sum(role.replicas for role in roles(training))
        share = threads_per_process(usable_cores(), given["parallel"], processes)
        training = settings_of({**given, "threads": share})
    request = check_request(
        _entry(settings),
        data=settings.data,
        settings=training,
        params=example,
        args=settings.args,
        pass_job_dir=bool(given["pass_job_dir"]),
    )
    return request, JobOptions.of(given)


def _entry(settings: StudySettings) -> Entry:
    if settings.function is None:
        return settings.entry
    # The workspace belongs to the user, and its jobs run their programs from it as well.
    function, _ = pickle.loads(settings.function)  # noqa: S301
    return cast("Entry", function)


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


def _texts(
    data: str | os.PathLike[str] | Mapping[str, str] | None,
) -> str | dict[str, str] | None:
    if data is None or isinstance(data, str):
        return data
    return os.fspath(data) if isinstance(data, os.PathLike) else dict(data)

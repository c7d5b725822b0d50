"""``timonel tune``: search for the best parameters of a script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timonel.cli.groups import StyledCommand, single
from timonel.cli.options import (
    ENTRY,
    DataOption,
    EngineOption,
    ScriptArgs,
    given,
    is_given,
    parse_data,
    takes,
)
from timonel.cli.settings import GlobalOptions
from timonel.errors import JobError, SpecError
from timonel.tuning.tune_options import STUDY, TuneOptions

if TYPE_CHECKING:
    from rich.console import Console

    from timonel.tuning.ai_platform import TuningConfig
    from timonel.tuning.space import SearchSpace
    from timonel.tuning.study import Study

app = single()


@app.command(cls=StyledCommand)
@takes(TuneOptions)
def tune(
    ctx: typer.Context,
    entry: Annotated[str | None, ENTRY] = None,
    args: ScriptArgs = None,
    *,
    param: Annotated[
        list[str] | None,
        typer.Option(
            help="Parameter and its range: lr=log(1e-4,1e-1), units=int(32,256), "
            "act=choice(relu,tanh), batch=values(16,32,64), epochs=3.",
            metavar="NAME=RANGE",
            rich_help_panel=STUDY,
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Recorded metric to optimize, such as val_accuracy; repeat it for several.",
            metavar="NAME",
            rich_help_panel=STUDY,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of an AI Platform tuning job.", metavar="FILE", rich_help_panel=STUDY
        ),
    ] = None,
    data: DataOption = None,
    on: EngineOption = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print the study as JSON and progress to standard error."),
    ] = False,
    **options: Any,
) -> None:
    """Search for the best parameters of a script in parallel trials.

    Each trial is a training job that receives its values as flags: --lr=0.01. Ctrl-C stops the
    study; 'timonel studies resume' continues it.
    """
    from timonel.cli.render.study_view import StudyView
    from timonel.tuning.launch import tune as start
    from timonel.tuning.objectives import parse_objectives

    settings = GlobalOptions.of(ctx)
    remarks = settings.remarks(stderr=json)
    space: SearchSpace | list[str] = param or []
    if config is not None:
        from timonel.tuning.ai_platform import read_config

        job = read_config(config)
        if job.ignored:
            remarks.print(f"ignored in {config}: {', '.join(job.ignored)}", soft_wrap=True)
        if job.resume_job_id is not None:
            found = _resume(job, settings, remarks)
            print_result(found, remarks, json=json)
            return
        entry, args = entry or job.python_module, args or list(job.args)
        space, metric = space or job.space, metric or [job.metric_tag]
        missing = {name for name in options if not is_given(ctx, name)}
        options |= {name: value for name, value in job.options.items() if name in missing}
    if entry is None:
        raise SpecError("no script to run", hint="as in 'timonel tune train.py'")
    if not space:
        raise SpecError(
            "no parameters to search", hint="give at least one --param 'lr=log(1e-4,1e-1)'"
        )
    if not metric:
        raise SpecError("no metric to optimize", hint="give --metric val_accuracy")
    objectives = parse_objectives(metric, options["goal"])
    remarks.print(", ".join(map(str, objectives)), soft_wrap=True)
    view = StudyView(
        remarks,
        objectives[0],
        total=options["trials"],
        parallel=options["parallel"],
    )
    with view.shown():
        found = start(
            entry,
            space,
            metric,
            data=parse_data(data),
            args=tuple(args or ()),
            workspace=settings.find(create=True),
            on=on,
            notify=view.notify,
            **given(options),
        )
    print_result(found, remarks, json=json)


def _resume(job: TuningConfig, settings: GlobalOptions, remarks: Console) -> Study:
    """Run further trials of an earlier study, with its script and options."""
    from timonel.tuning.studies import open_study

    assert job.resume_job_id is not None
    study = open_study(settings.find(), job.resume_job_id)
    if study.settings.search_space != job.space:
        raise SpecError(
            f"the parameters differ from those of the study {study.name}",
            hint="remove resumePreviousJobId to begin a new study",
        )
    remarks.print(f"continues the study {study.name} with its script and options", soft_wrap=True)
    started = sum(trial.run_id is not None for trial in study.trials)
    return resumed(study, started + job.options["trials"], remarks)


def resumed(study: Study, trials: int | None, remarks: Console) -> Study:
    """Run the rest of a study, and show it."""
    from timonel.cli.render.study_view import StudyView
    from timonel.tuning.launch import resume

    view = StudyView(
        remarks,
        study.settings.objectives[0],
        total=trials or study.settings.trials,
        parallel=study.settings.options["parallel"],
        earlier=study.trials,
    )
    with view.shown():
        return resume(study.name, trials=trials, workspace=study.workspace, notify=view.notify)


def print_result(study: Study, remarks: Console, *, json: bool) -> None:
    """Print a study that has ended: its best trials, or all as JSON."""
    from timonel.cli.render import studies as render
    from timonel.cli.render.output import console, print_json

    if json:
        print_json(render.STUDY.json(study))
    if not study.best_trials:
        raise JobError(
            f"no trial of the study {study.name} has succeeded",
            hint=f"'timonel studies show {study.name}' shows why",
        )
    if json:
        return
    console().print(render.best_line(study), soft_wrap=True)
    if len(study.best_trials) == 1:
        run = study.best_trials[0].run_id
        remarks.print(f"next: timonel export {run} --name NAME", style="dim", soft_wrap=True)

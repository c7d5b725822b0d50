"""``timonel tune``: search for the best parameters of a script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timonel.cli.commands.train import parse_data
from timonel.cli.groups import StyledCommand, single
from timonel.cli.options import given, takes
from timonel.cli.settings import GlobalOptions
from timonel.errors import SpecError
from timonel.training.train_options import PROGRAM, TrainOptions

if TYPE_CHECKING:
    from timonel.tuning.ai_platform import TuningConfig

app = single()
STUDY = "The study"


@app.command(cls=StyledCommand)
@takes(TrainOptions)
def tune(
    ctx: typer.Context,
    entry: Annotated[
        str | None,
        typer.Argument(help="Script, notebook, or module name as in 'python -m'.", metavar="ENTRY"),
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Argument(
            help="Arguments after '--' are passed to the script unchanged.", metavar="[-- ARGS]"
        ),
    ] = None,
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
    constraint: Annotated[
        list[str] | None,
        typer.Option(
            help="Condition that all trials satisfy, such as 'layers * units <= 1024'.",
            metavar="CONDITION",
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
    goal: Annotated[
        list[str] | None,
        typer.Option(
            help="'maximize' or 'minimize', for all metrics or for each. [default: maximize]",
            metavar="GOAL",
            rich_help_panel=STUDY,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Number of trials. [default: 20]", rich_help_panel=STUDY),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            help="Number of trials at the same time; they share the cores. [default: 1]",
            rich_help_panel=STUDY,
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            help="Name of the study. [default: study-DATE]", metavar="NAME", rich_help_panel=STUDY
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="bayesian, tpe, gp, cma-es, random, grid, qmc, google-vizier. [default: bayesian]",
            metavar="NAME",
            rich_help_panel=STUDY,
        ),
    ] = None,
    stopping_rule: Annotated[
        str | None,
        typer.Option(
            help="Rule that stops trials early: median, decay-curve, convex or hyperband. "
            "[default: none]",
            metavar="NAME",
            rich_help_panel=STUDY,
        ),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(help="Epochs of a complete trial; hyperband needs it.", rich_help_panel=STUDY),
    ] = None,
    max_failed: Annotated[
        int | None,
        typer.Option(
            help="End the study once this many trials have failed.", rich_help_panel=STUDY
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(help="Start no trial after this many seconds.", rich_help_panel=STUDY),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="End the study after this many trials without progress.", rich_help_panel=STUDY
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of an AI Platform tuning job.", metavar="FILE", rich_help_panel=STUDY
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Dataset for timonel.data.load(); repeat it with names.",
            metavar="[NAME=]FOLDER",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
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
    from timonel.cli.render.studies import StudyView
    from timonel.tuning.launch import tune as start

    job = None if config is None else _job_of(config)
    settings = GlobalOptions.of(ctx)
    workspace = settings.find(create=True)
    remarks = settings.remarks(stderr=json)
    chosen = _chosen(
        job,
        algorithm=algorithm,
        trials=trials,
        parallel=parallel,
        stopping_rule=stopping_rule,
        max_failed=max_failed,
    )
    if job is not None and job.ignored:
        remarks.print(f"ignored in {config}: {', '.join(job.ignored)}")
    if job is not None and job.pass_job_dir:
        options["pass_job_dir"] = True
    entry = entry or (job.python_module if job else None)
    metrics = metric or ([job.metric_tag] if job else None)
    if entry is None:
        raise SpecError("no script to run", hint="as in 'timonel tune train.py'")
    if not param and job is None:
        raise SpecError(
            "no parameters to search", hint="give at least one --param 'lr=log(1e-4,1e-1)'"
        )
    if not metrics:
        raise SpecError("no metric to optimize", hint="give --metric val_accuracy")
    goals: Any = goal or ([job.goal] if job else ["maximize"])  # checked by tune
    found = start(
        entry,
        job.space if job is not None and not param else (param or []),
        metrics,
        goal=goals,
        study=study or (job.job_id if job else None),
        max_steps=max_steps,
        max_seconds=max_seconds,
        patience=patience,
        constraints=tuple(constraint or ()),
        data=parse_data(data),
        args=tuple(args or (job.args if job else ())),
        workspace=workspace,
        notify=StudyView(remarks, metrics[0]).notify,
        **chosen,
        **given(options),
    )
    print_result(found, remarks, json=json)


def print_result(study: Any, remarks: Any, *, json: bool) -> None:
    """Print a study that has ended: its best trials, or all as JSON."""
    from timonel.cli.render import studies as render
    from timonel.cli.render.output import console, print_json

    if json:
        print_json(render.study_json(study))
        return
    console().print(render.best_line(study), soft_wrap=True)
    if len(study.best_trials) == 1:
        run = study.best_trials[0].run_id
        remarks.print(f"next: timonel export {run} --name NAME", style="dim", soft_wrap=True)


def _job_of(config: Path) -> TuningConfig:
    from timonel.tuning.ai_platform import parse_config

    try:
        text = config.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {config}: {error}") from error
    job = parse_config(text)
    if job.resume_job_id is not None:
        raise SpecError(
            f"resumePreviousJobId in {config} is not supported",
            hint=f"remove it, and use 'timonel studies resume {job.resume_job_id} --trials N'",
        )
    return job


def _chosen(job: TuningConfig | None, **options: Any) -> dict[str, Any]:
    """Return options with a value; those of the YAML file replace missing ones."""
    stated: dict[str, Any] = {}
    if job is not None:
        stated = {
            "algorithm": job.algorithm,
            "trials": job.max_trials,
            "parallel": job.parallel_trials,
            "stopping_rule": "median" if job.early_stopping else "none",
            "max_failed": job.failed_trials,
        }
    return {**stated, **{name: value for name, value in options.items() if value is not None}}

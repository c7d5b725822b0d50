"""``timonel studies``: list, show, resume and stop studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from timonel.cli import completion
from timonel.cli.deletion import add_delete
from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.settings import GlobalOptions

app = noun("List, show, resume, stop and delete studies; export their best model.")
StudyRef = Annotated[
    str,
    typer.Argument(
        help="Name of the study, or 'last'.", metavar="STUDY", autocompletion=completion.studies
    ),
]


@app.command("list", cls=StyledCommand)
def list_(ctx: typer.Context, json: Json = False) -> None:
    """List the studies of the workspace, newest first."""
    from timonel.cli.render.studies import STUDY
    from timonel.tuning.studies import list_studies

    found = list_studies(GlobalOptions.of(ctx).find())
    STUDY.print_list("studies", found, "no studies yet: 'timonel tune' starts one", json=json)


@app.command(cls=StyledCommand)
def show(
    ctx: typer.Context,
    study: StudyRef = "last",
    *,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write figures to FILE.png, or a page to FILE.html.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Show a study: its trials, best first; or draw it."""
    from timonel.cli.render import studies as render
    from timonel.cli.render.output import console, print_json
    from timonel.tuning.studies import open_study

    found = open_study(GlobalOptions.of(ctx).find(), study)
    if plot is not None:
        found.plot(plot)
    if json:
        print_json(render.STUDY.json(found))
    elif plot is not None:
        typer.echo(f"{plot} shows the study {found.name}")
    else:
        console().print(render.study_page(found))


@app.command(cls=StyledCommand)
def best(ctx: typer.Context, study: StudyRef = "last", json: Json = False) -> None:
    """Show the best trial of a study, or its Pareto front."""
    from timonel.cli.render import studies as render
    from timonel.cli.render.output import console, print_json
    from timonel.tuning.studies import open_study

    found = open_study(GlobalOptions.of(ctx).find(), study)
    if json:
        print_json([render.trial_json(found, trial) for trial in found.best_trials])
    else:
        console().print(render.best_line(found), soft_wrap=True)


@app.command(cls=StyledCommand)
def resume(
    ctx: typer.Context,
    study: StudyRef = "last",
    *,
    trials: Annotated[
        int | None, typer.Option(min=1, help="New number of trials, earlier ones included.")
    ] = None,
    json: Json = False,
) -> None:
    """Continue a study and the trials that were running."""
    from timonel.cli.commands.tune import print_result, resumed
    from timonel.tuning.studies import open_study

    settings = GlobalOptions.of(ctx)
    remarks = settings.remarks(stderr=json)
    found = open_study(settings.find(), study)
    total = trials or found.settings.trials
    earlier = found.trials
    if all(trial.ended_at for trial in earlier) and len(earlier) >= total:
        remarks.print(f"all {total} trials have run; a larger --trials continues the study")
    found = resumed(found, trials, remarks)
    print_result(found, remarks, json=json)


@app.command(cls=StyledCommand)
def stop(ctx: typer.Context, study: StudyRef = "last", json: Json = False) -> None:
    """Stop a study and its running trials; 'resume' continues them."""
    from timonel.cli.render.output import print_json
    from timonel.tuning.studies import open_study

    found = open_study(GlobalOptions.of(ctx).find(), study)
    unfinished = found.is_running or any(not trial.ended_at for trial in found.trials)
    if unfinished:
        found.stop()
    if json:
        print_json({"name": found.name})
        return
    if not unfinished:
        typer.echo(f"{found.name} is not running")
        return
    typer.echo(f"{found.name} stops; 'timonel studies resume {found.name}' continues it")


@app.command(cls=StyledCommand)
def export(
    ctx: typer.Context,
    study: StudyRef = "last",
    *,
    name: Annotated[str, typer.Option(help="Name of the model.", metavar="MODEL")],
    json: Json = False,
) -> None:
    """Publish the model of the best trial as the next version of a name."""
    from timonel.cli.render.models import VERSION
    from timonel.cli.render.output import print_json
    from timonel.tuning.studies import open_study

    found = open_study(GlobalOptions.of(ctx).find(), study)
    version = found.best_run.export(name)
    if json:
        print_json(VERSION.json(version))
        return
    typer.echo(f"{version} is the model of {found.best_run.id}")


add_delete(
    app,
    "study",
    "Delete studies with the runs and jobs of their trials.",
    "The run of a trial that a model version was made from is kept. So is a study in a database.",
)

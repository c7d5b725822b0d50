"""``timonel jobs``: list and manage jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli.commands.logs import logs
from timonel.cli.commands.stop import stop
from timonel.cli.groups import Command, noun
from timonel.cli.settings import Settings

if TYPE_CHECKING:
    from timonel.storage import Workspace

app = noun("List, show, scale, resume and stop jobs.")

JSON = typer.Option("--json", help="Print JSON.")


@app.command("list", cls=Command)
def list_(
    ctx: typer.Context,
    limit: Annotated[
        int, typer.Option(help="Maximum number to show, newest first; 0 for all.")
    ] = 20,
    json: Annotated[bool, JSON] = False,
) -> None:
    """List the jobs of the workspace, newest first."""
    from timonel.cli.jobs import all_jobs
    from timonel.cli.render import jobs as render
    from timonel.cli.render.output import console, print_json

    found = all_jobs(Settings.of(ctx).find())
    shown = found[:limit] if limit > 0 else found
    if json:
        print_json({"jobs": [render.job_json(job) for job in shown]})
    elif shown:
        console().print(render.job_list(shown))
    else:
        typer.echo("no jobs yet: 'timonel train' makes them")


@app.command(cls=Command)
def show(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="Job ID, ID prefix, or 'last'.")] = "last",
    json: Annotated[bool, JSON] = False,
) -> None:
    """Show a job: state, settings and tasks."""
    from timonel.cli.jobs import engine_of, find_job, run_events
    from timonel.cli.render import jobs as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.pace import pace_json, paces_of
    from timonel.training.display import present

    workspace = Settings.of(ctx).find()
    status = engine_of(workspace).status(find_job(workspace, job))
    events = run_events(workspace, status.job_id)
    if json:
        print_json({**render.job_json(status), **pace_json(paces_of(events))})
        return
    out = console()
    out.print(render.job_page(status, present(status, events, out.width)))


@app.command(cls=Command)
def scale(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="Job ID, ID prefix, or 'last'.")],
    workers: Annotated[int, typer.Argument(help="New number of workers.")],
    json: Annotated[bool, JSON] = False,
) -> None:
    """Change the number of workers of a running job.

    Needs a job started with '--workers MIN:MAX'. Its tasks save a checkpoint and restart at the
    same step with the new number of workers.
    """
    from timonel.cli.jobs import engine_of, find_job
    from timonel.training.scale import scale_workers

    workspace = Settings.of(ctx).find()
    job_id = find_job(workspace, job)
    scale_workers(engine_of(workspace), job_id, workers)
    if json:
        _print_job(workspace, job_id)
        return
    typer.echo(f"{job_id} is asked to go on with {workers} worker{'s' * (workers != 1)}")


@app.command(cls=Command)
def resume(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="Job ID, ID prefix, or 'last'.")] = "last",
    json: Annotated[bool, JSON] = False,
) -> None:
    """Restart a failed or stopped job from its checkpoints.

    The job and its run keep their IDs, and the restart count starts at zero.
    """
    from timonel.cli.jobs import engine_of, find_job
    from timonel.training.resume import resume_job

    workspace = Settings.of(ctx).find()
    job_id = find_job(workspace, job)
    resume_job(workspace, engine_of(workspace), job_id)
    if json:
        _print_job(workspace, job_id)
        return
    typer.echo(f"{job_id} goes on: see 'timonel logs {job_id} --follow'")


def _print_job(workspace: Workspace, job_id: str) -> None:
    from timonel.cli.jobs import engine_of
    from timonel.cli.render import jobs as render
    from timonel.cli.render.output import print_json

    print_json(render.job_json(engine_of(workspace).status(job_id)))


app.command("logs", cls=Command)(logs)
app.command("stop", cls=Command)(stop)

"""``timonel stop``: ask a job to stop."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from timonel.cli.groups import Command, single
from timonel.cli.settings import Settings
from timonel.errors import JobError

app = single()

POLL_S = 0.2


@app.command(cls=Command)
def stop(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="A job's id, its beginning, or 'last'.")] = "last",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return once its tasks have ended.")
    ] = True,
) -> None:
    """Stop a job; it ends as stopped, with its checkpoints.

    A job that has ended stays as it is.
    """
    from timonel.cli.jobs import engine_of, find_job

    workspace = Settings.of(ctx).find()
    job_id = find_job(workspace, job)
    engine = engine_of(workspace)
    if engine.status(job_id).state.is_final:
        typer.echo(f"{job_id} has {engine.status(job_id).state.value} already")
        return
    engine.cancel(job_id)
    if not wait:
        typer.echo(f"{job_id} is asked to stop")
        return
    # Each task has its grace, then it is killed: two minutes are beyond any of that.
    deadline = time.monotonic() + 120
    while not engine.status(job_id).state.is_final:
        if time.monotonic() > deadline:
            raise JobError(
                f"expected {job_id} to stop within two minutes, but it goes on",
                hint=f"see 'timonel jobs show {job_id}'",
            )
        time.sleep(POLL_S)
    typer.echo(f"{job_id} has {engine.status(job_id).state.value}")

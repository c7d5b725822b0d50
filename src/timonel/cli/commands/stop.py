"""``timonel stop``: stop a job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli.groups import Command, single
from timonel.cli.settings import Settings
from timonel.errors import JobError

if TYPE_CHECKING:
    from timonel.engines import Engine

app = single()

POLL_S = 0.2


@app.command(cls=Command)
def stop(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="Job ID, ID prefix, or 'last'.")] = "last",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until its tasks have ended.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Stop a job and keep its checkpoints.

    Has no effect on a job that has ended.
    """
    from timonel.cli.jobs import engine_of, find_job
    from timonel.cli.render import jobs as render
    from timonel.cli.render.output import print_json

    workspace = Settings.of(ctx).find()
    job_id = find_job(workspace, job)
    engine = engine_of(workspace)
    was_over = engine.status(job_id).state.is_final
    if not was_over:
        engine.cancel(job_id)
        if wait:
            _wait(engine, job_id)
    status = engine.status(job_id)
    if json:
        print_json(render.job_json(status))
    elif not was_over and not wait:
        typer.echo(f"{job_id} is asked to stop")
    else:
        typer.echo(f"{job_id} has {status.state.value}{' already' if was_over else ''}")


def _wait(engine: Engine, job_id: str) -> None:
    """Wait until a job has ended.

    Raises:
        JobError: The job still runs after two minutes.
    """
    # Each task is killed after its grace period, which is well below two minutes.
    deadline = time.monotonic() + 120
    while not engine.status(job_id).state.is_final:
        if time.monotonic() > deadline:
            raise JobError(
                f"expected {job_id} to stop within two minutes, but it goes on",
                hint=f"see 'timonel jobs show {job_id}'",
            )
        time.sleep(POLL_S)

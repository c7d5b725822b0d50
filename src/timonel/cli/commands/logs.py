"""``timonel logs``: print the output of a job's tasks."""

from __future__ import annotations

from json import dumps
from typing import Annotated

import typer

from timonel.cli.groups import Command, single
from timonel.cli.settings import Settings

app = single()


@app.command(cls=Command)
def logs(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="Job ID, ID prefix, or 'last'.")] = "last",
    task: Annotated[
        str | None, typer.Option(help="Only the output of this task, such as chief-0 or worker-0.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each line: task, text.")
    ] = False,
) -> None:
    """Print the output of a job's tasks."""
    from timonel.cli.jobs import engine_of, find_job
    from timonel.training.terminal import says_no_gpu

    workspace = Settings.of(ctx).find()
    job_id = find_job(workspace, job)
    engine = engine_of(workspace)
    names = [found.task_id for found in engine.status(job_id).tasks]
    several = task is None and len(names) > 1
    wide = max(map(len, names), default=0)
    for line in engine.logs(job_id, task_id=task, follow=follow):
        if says_no_gpu(line.text):
            continue
        if json:
            typer.echo(dumps({"task": line.task_id, "text": line.text}, ensure_ascii=False))
            continue
        typer.echo(f"{line.task_id:<{wide}}  {line.text}" if several else line.text)

"""``timonel jobs``: list and manage jobs; also ``timonel logs`` and ``timonel stop``."""

from __future__ import annotations

import contextlib
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timonel.cli import completion
from timonel.cli.deletion import add_delete
from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.settings import GlobalOptions
from timonel.errors import JobError, TimonelError

if TYPE_CHECKING:
    from timonel.engines import JobStatus
    from timonel.storage import Workspace
    from timonel.training import Job

app = noun("List, show, scale, resume, stop and delete jobs.")
JobRef = Annotated[
    str,
    typer.Argument(help="Job ID, ID prefix, name, or 'last'.", autocompletion=completion.runs),
]
_STOP_S = 120.0
"""Each task is killed after its grace period, which is much shorter."""


@app.command("list", cls=StyledCommand)
def list_(
    ctx: typer.Context,
    limit: Annotated[
        int, typer.Option(help="Maximum number to show, newest first; 0 for all.")
    ] = 20,
    json: Json = False,
) -> None:
    """List the jobs of the workspace, newest first."""
    from timonel.cli.render.jobs import JOB
    from timonel.training.jobs import list_jobs

    options = GlobalOptions.of(ctx)
    workspace = options.find(offline=True)
    found = list_jobs(workspace)
    shown = found[:limit] if limit > 0 else found
    place = "" if options.workspace else f" in {workspace.uri}"
    empty = f"No jobs{place}. Start one with 'timonel train SCRIPT'."
    JOB.print_list("jobs", shown, empty, json=json)
    if any(job.machine for job in shown):
        options.remarks(stderr=True).print(
            "jobs of other machines: as read from the bucket by the last 'timonel runs'",
            style="dim",
        )


@app.command(cls=StyledCommand)
def show(ctx: typer.Context, job: JobRef = "last", json: Json = False) -> None:
    """Show a job: state, settings and tasks."""
    from timonel.cli.render.jobs import JOB, job_page
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.runs import pace_json, paces_of
    from timonel.training.display import progress_lines
    from timonel.training.jobs import find_job

    workspace = GlobalOptions.of(ctx).find(offline=True)
    status = find_job(workspace, job).status()
    events = _run_events(workspace, status.job_id)
    if json:
        print_json(JOB.json(status) | pace_json(paces_of(events)))
        return
    out = console()
    out.print(job_page(status, progress_lines(status, events, out.width)))


@app.command(cls=StyledCommand)
def scale(
    ctx: typer.Context,
    job: JobRef,
    workers: Annotated[int, typer.Argument(help="New number of workers.")],
    json: Json = False,
) -> None:
    """Change the number of workers of a running job.

    Needs a job started with '--workers MIN:MAX'. Its tasks save a checkpoint and restart at the
    same step with the new number of workers.
    """
    from timonel.training.jobs import find_job

    found = find_job(GlobalOptions.of(ctx).find(offline=True), job)
    found.scale(workers)
    if json:
        _print_json(found.status())
    else:
        typer.echo(f"{found.id} restarts with {workers} worker{'s' * (workers != 1)}")


@app.command(cls=StyledCommand)
def resume(ctx: typer.Context, job: JobRef = "last", json: Json = False) -> None:
    """Restart a failed or stopped job from its checkpoints.

    The job and its run keep their IDs, and the restart count starts at zero.
    """
    from timonel.training.handles import resume_job
    from timonel.training.jobs import RemoteJobError, find_job, restore_job

    workspace = GlobalOptions.of(ctx).find()
    try:
        found = find_job(workspace, job)
    except RemoteJobError:
        found = restore_job(workspace, job)
    else:
        resume_job(workspace, found.engine, found.id)
    if json:
        _print_json(found.status())
    else:
        typer.echo(f"{found.id} resumes: see 'timonel logs {found.id} --follow'")


@app.command(cls=StyledCommand)
def logs(
    ctx: typer.Context,
    job: JobRef = "last",
    task: Annotated[
        str | None, typer.Argument(help="Task, such as chief-0 or worker-0. [default: all]")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each line: task, text.")
    ] = False,
) -> None:
    """Print the output of a job's tasks."""
    from timonel.training.jobs import find_job
    from timonel.training.terminal import says_no_gpu

    options = GlobalOptions.of(ctx)
    found = find_job(options.find(offline=True), job)
    names = [each.task_id for each in found.status().tasks]
    several = task is None and len(names) > 1
    width = max(map(len, names), default=0)
    is_empty = True
    for line in found.logs(task_id=task, follow=follow):
        is_empty = False
        if says_no_gpu(line.text):
            continue
        if json:
            typer.echo(dumps({"task": line.task_id, "text": line.text}, ensure_ascii=False))
            continue
        typer.echo(f"{line.task_id:<{width}}  {line.text}" if several else line.text)
    if is_empty and task is None and (status := found.status()).message:
        text = f"{found.id} has no output and {status.state.phrase}: {status.message}"
        options.remarks(stderr=True).print(text, soft_wrap=True)


@app.command(cls=StyledCommand)
def stop(
    ctx: typer.Context,
    job: JobRef = "last",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until its tasks have ended.")
    ] = True,
    json: Json = False,
) -> None:
    """Stop a job and keep its checkpoints.

    Has no effect on a job that has ended.
    """
    from timonel.training.jobs import find_job

    found = find_job(GlobalOptions.of(ctx).find(offline=True), job)
    had_ended = found.status().state.is_final
    if not had_ended:
        found.stop()
        if wait:
            _wait_for_end(found)
    status = found.status()
    if json:
        _print_json(status)
    elif not status.state.is_final:
        typer.echo(f"{found.id} is stopping")
    else:
        typer.echo(f"{found.id} has {status.state.value}{' already' if had_ended else ''}")


def _wait_for_end(job: Job) -> None:
    if not job.wait(_STOP_S).state.is_final:
        raise JobError(
            f"{job.id} still runs {_STOP_S:g} s after the request to stop",
            hint=f"see 'timonel jobs show {job.id}'",
        )


def _print_json(status: JobStatus) -> None:
    from timonel.cli.render.jobs import JOB
    from timonel.cli.render.output import print_json

    print_json(JOB.json(status))


def _run_events(workspace: Workspace, job_id: str) -> list[dict[str, Any]]:
    """Return the events of a job's run; empty if it has none."""
    from timonel.tracking import read_run

    with contextlib.suppress(TimonelError):
        return read_run(workspace, job_id).events()
    return []


add_delete(
    app,
    "job",
    "Delete logs, checkpoints and exports of jobs; their runs stay.",
    "They cannot be resumed, nor their models exported.",
)

"""``timonel train``: run a program as a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from timonel.training.train_options import JOB, PROGRAM, TrainOptions

if TYPE_CHECKING:
    from rich.console import Console

    from timonel.training import Run
    from timonel.training.display import TrainingView

app = single()


_AFTER_DASHES = "timonel.after_dashes"
_REFRESH_PER_S = 4
_PIPE_WIDTH = 200
_PIPE_INTERVAL_S = 30.0
"""Interval of progress lines in a long epoch, outside terminals."""


class _TrainCommand(StyledCommand):
    """Command that knows how many words follow ``--``, which the parser removes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_AFTER_DASHES] = args[args.index("--") + 1 :] if "--" in args else []
        return super().parse_args(ctx, args)


@app.command(cls=_TrainCommand)
@takes(TrainOptions)
def train(
    ctx: typer.Context,
    entry: Annotated[str | None, ENTRY] = None,
    args: ScriptArgs = None,
    *,
    data: DataOption = None,
    quantize_aware: Annotated[
        str | None,
        typer.Option(
            help="Fine-tune this run's model with simulated 8-bit integers, instead of a script.",
            metavar="RUN",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="Run the TFJob or MPIJob of this Kubeflow manifest; ENTRY replaces its script.",
            metavar="YAML",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    params: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Parameter, passed to the script as --NAME=VALUE; a switch needs no value.",
            metavar="NAME[=VALUE]",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    on: EngineOption = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Return immediately; follow with 'timonel jobs' and 'timonel logs'.",
            rich_help_panel=JOB,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what --on kubernetes would create, as YAML; create nothing.",
            rich_help_panel=JOB,
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the run as JSON and progress to standard error.",
            rich_help_panel=JOB,
        ),
    ] = False,
    **options: Any,
) -> None:
    """Run a script, notebook or module on one or more workers.

    The script is plain Keras and needs no changes for several workers. Ctrl-C stops the job; the
    checkpoints it has saved are kept.
    """
    import timonel
    from timonel.cli.render.output import print_objects
    from timonel.training.finish import interruption
    from timonel.training.launch import preview
    from timonel.training.mpi import is_rank

    if manifest is not None and [entry, *(args or ())] == ctx.meta[_AFTER_DASHES]:
        entry, args = None, ctx.meta[_AFTER_DASHES]  # arguments of the manifest's program
    settings = GlobalOptions.of(ctx)
    workspace = settings.plan() if dry_run else settings.find(create=True)
    remarks = settings.remarks(stderr=json)
    # A task of a user-managed cluster, or of mpirun, has run in this process and ended by now.
    is_rank_here = options["launcher"] == "mpi" and is_rank(os.environ)
    is_job = options["cluster"] is None and not is_rank_here
    arguments: dict[str, Any] = {
        "data": parse_data(data),
        "params": parse_params(params),
        "args": tuple(args or ()),
        "quantize_aware": quantize_aware,
        "manifest": manifest,
        "workspace": workspace,
        "on": on,
        # Without defaults: a default does not contradict a cluster of the user's.
        **given({name: value for name, value in options.items() if is_given(ctx, name)}),
    }
    if dry_run:
        print_objects(preview(entry, **arguments), as_json=json)
        return
    run = timonel.train(entry, detach=is_job or detach, **arguments)
    if not is_job:
        remarks.print(f"this task of {run.id} is done")
        return
    settings.mention_shared_workspace()
    follow = "; follow it with 'timonel logs'" if detach else ""
    remarks.print(f"job {run.id} started{follow}", soft_wrap=True)
    if options["wandb"]:
        from timonel.styles import from_here
        from timonel.tracking.mirrors.wandb import describe_destination, offline_folder

        folder = from_here(offline_folder(os.environ, workspace.root))
        remarks.print(describe_destination(os.environ, folder, run.id), soft_wrap=True)
    if not detach:
        try:
            _follow(run, remarks)
            run.wait()
        except JobError:
            _mention_model(run, remarks)
            raise
        except KeyboardInterrupt:
            run.job.stop()
            run.job.wait()
            raise interruption(workspace, run.id) from None
    _print_run(run, remarks, json=json, detach=detach)


def _print_run(run: Run, remarks: Console, *, json: bool, detach: bool) -> None:
    """Print the result of a run, or its id if detached."""
    from timonel.cli.render import runs as render
    from timonel.cli.render.output import console, print_json
    from timonel.training.display import outcome_line

    record = run.record
    if json:
        print_json(render.run_json(record))
        return
    out = console()
    if detach:
        if remarks.quiet:
            out.print(run.id)
        return
    line = outcome_line(run.id, record.status, record.duration_s, record.metrics, out.width)
    out.print(line, soft_wrap=True)
    _mention_model(run, remarks)


def _mention_model(run: Run, remarks: Console) -> None:
    if any(artifact.type == "savedmodel" for artifact in run.record.outputs):
        line = f"model of run {run.id}: 'timonel export --name NAME' publishes it"
        remarks.print(line, style="dim", soft_wrap=True)


def _follow(run: Run, screen: Console) -> None:
    """Show a run until its job has ended.

    A terminal shows the current epoch and the roles live; otherwise only lines are printed.
    """
    from timonel.training.display import TrainingView

    if screen.is_terminal:
        view = TrainingView(screen.width)
    else:
        view = TrainingView(_PIPE_WIDTH, _PIPE_INTERVAL_S)
    with _live(screen, view):
        for event in run.follow(_ended(run, view, screen)):
            for line in view.feed(event):
                screen.print(line, soft_wrap=True)
        for line in view.end():
            screen.print(line, soft_wrap=True)


def _ended(run: Run, view: TrainingView, screen: Console) -> Callable[[], bool]:
    """Return the callback that tells whether the job has ended.

    It is called whenever no event is new.
    """
    from timonel.training.display import roles_line, waiting_line

    shown: list[str] = []

    def ended() -> bool:
        nonlocal shown
        status = run.job.status()
        view.job(status)
        if not screen.is_terminal:
            lines = [line for line in (roles_line(status), waiting_line(status)) if line]
            for line in lines:
                if line.plain not in shown:
                    screen.print(line, soft_wrap=True)
            shown = [line.plain for line in lines]
        return status.state.is_final

    return ended


@contextmanager
def _live(screen: Console, view: TrainingView) -> Iterator[None]:
    if not screen.is_terminal:
        yield
        return
    from rich.live import Live

    with Live(
        get_renderable=view.live,
        console=screen,
        refresh_per_second=_REFRESH_PER_S,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield


def parse_params(words: list[str] | None) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` words, and names of switches, into a dict."""
    found: dict[str, Any] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not name:
            raise SpecError(f"--set takes NAME=VALUE, got {word!r}", hint="as in --set lr=0.01")
        if name in found:
            raise SpecError(
                f"--set {name} is repeated, with {found[name]!r} and {value!r}",
                hint="remove one of them",
            )
        found[name] = value if equals else "true"
    return found

"""``timonel runs``: what was done, measured and made."""

from __future__ import annotations

from typing import Annotated

import typer

from timonel.cli.groups import Command, noun
from timonel.cli.settings import Settings
from timonel.errors import SpecError

app = noun("Past work: what went in, what was measured, what came out.")
JSON = typer.Option("--json", help="Print JSON.")


@app.command("list", cls=Command)
def list_(
    ctx: typer.Context,
    *,
    kind: Annotated[
        str | None, typer.Option(help="Only runs of this kind: convert, train, export, ...")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(help="Only runs with this status: running, succeeded, failed, stopped, lost."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Only runs with this name; * stands for any letters.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Only runs that this model, or model/version, came from.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only runs since a date or an age: 2026-01-31, 12h, 7d.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many, newest first; 0 for all.")] = 20,
    json: Annotated[bool, JSON] = False,
) -> None:
    """List the runs of the workspace, newest first."""
    from timonel.cli.render import runs as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.selection import Selection, models_of, parse_since
    from timonel.tracking import list_runs

    selection = Selection(status, name, model, parse_since(since))
    every = list_runs(Settings.of(ctx).find())
    models = models_of(every)
    found = [run for run in selection.of(every, models) if kind in {None, run.kind}]
    shown = found[:limit] if limit > 0 else found
    if json:
        print_json({"runs": [render.run_json(run) for run in shown]})
    elif every and not found:
        typer.echo(f"no run fits, of {len(every)}: 'timonel runs' lists them")
    elif shown:
        out = console()
        out.print(render.run_list(shown, models, out.width))
        if len(shown) < len(found):
            typer.echo(f"and {len(found) - len(shown)} older ones: --limit 0 shows all")
    else:
        typer.echo("no runs yet: 'timonel convert' and 'timonel train' make them")


@app.command(cls=Command)
def show(
    ctx: typer.Context,
    run: Annotated[
        str, typer.Argument(help="An id, the beginning of one, a name, or 'last'.")
    ] = "last",
    json: Annotated[bool, JSON] = False,
) -> None:
    """Show one run: parameters, metrics with their curves, inputs and outputs."""
    from timonel.cli.render import runs as render
    from timonel.cli.render.output import console, print_json
    from timonel.tracking import read_run

    record = read_run(Settings.of(ctx).find(), run)
    if json:
        print_json(render.run_json(record, full=True))
    else:
        console().print(render.run_page(record))


@app.command(cls=Command)
def compare(
    ctx: typer.Context,
    runs: Annotated[
        list[str], typer.Argument(help="Two runs or more: ids, beginnings of ids, names.")
    ],
    json: Annotated[bool, JSON] = False,
) -> None:
    """Compare runs: the parameters that differ, and the last value of every metric."""
    from timonel.cli.render import runs as render
    from timonel.cli.render.output import console, print_json
    from timonel.tracking import read_run

    if len(runs) == 1:
        raise SpecError("expected two runs or more, got one", hint="'timonel runs' lists them")
    workspace = Settings.of(ctx).find()
    records = [read_run(workspace, run) for run in runs]
    if json:
        print_json(render.comparison_json(records))
    else:
        console().print(render.comparison(records))

"""``timonel runs``: what was done, measured and made."""

from __future__ import annotations

from typing import Annotated

import typer

from timonel.cli.groups import Command, noun
from timonel.cli.settings import Settings

app = noun("Past work: what went in, what was measured, what came out.")
JSON = typer.Option("--json", help="Print JSON.")


@app.command("list", cls=Command)
def list_(
    ctx: typer.Context,
    kind: Annotated[
        str | None, typer.Option(help="Only runs of this kind: convert, train, export, ...")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many, newest first; 0 for all.")] = 20,
    json: Annotated[bool, JSON] = False,
) -> None:
    """List the runs of the workspace, newest first."""
    from timonel.cli.render import runs as render
    from timonel.cli.render.output import console, print_json
    from timonel.tracking import list_runs

    found = list_runs(Settings.of(ctx).find(), kind=kind)
    shown = found[:limit] if limit > 0 else found
    if json:
        print_json({"runs": [render.run_json(run) for run in shown]})
    elif shown:
        console().print(render.run_list(shown))
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

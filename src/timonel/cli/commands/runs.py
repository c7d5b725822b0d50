"""``timonel runs``: list, show and compare runs."""

from __future__ import annotations

from typing import Annotated

import typer

from timonel.cli.groups import Command, noun
from timonel.cli.settings import Settings
from timonel.errors import SpecError

app = noun("List, show and compare runs: parameters, metrics, inputs, outputs.")
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
        str | None, typer.Option(help="Only runs with this name; * matches anything.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Only runs that made this model or model/version.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only runs that started since a date or within a time: 2026-01-31, 12h, 7d."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Maximum number to show, newest first; 0 for all.")
    ] = 20,
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
    run: Annotated[str, typer.Argument(help="Run ID, ID prefix, name, or 'last'.")] = "last",
    json: Annotated[bool, JSON] = False,
) -> None:
    """Show a run: parameters, metrics, inputs and outputs."""
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
    runs: Annotated[list[str], typer.Argument(help="Two or more runs: IDs, ID prefixes or names.")],
    json: Annotated[bool, JSON] = False,
) -> None:
    """Compare runs: different parameters, and last values of metrics."""
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

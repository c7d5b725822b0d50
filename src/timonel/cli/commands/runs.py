"""``timonel runs``: list, show and compare runs."""

from __future__ import annotations

import datetime as dt
import fnmatch
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli import completion
from timonel.cli.deletion import add_delete
from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.settings import GlobalOptions
from timonel.errors import SpecError
from timonel.units import parse_seconds

if TYPE_CHECKING:
    from timonel.tracking import RunRecord

app = noun("List, show, compare and delete runs: parameters, metrics, inputs, outputs.")


@app.command("list", cls=StyledCommand)
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
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only runs that meet this condition: 'params.lr < 0.01', 'val_accuracy > 0.9'; "
            "repeat it.",
            metavar="CONDITION",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="Sort by a metric, params.NAME, name, script, status, started_at or duration_s, "
            "largest first with -. [default: newest first]",
            metavar="[-]KEY",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number to show; 0 for all.")] = 20,
    json: Json = False,
) -> None:
    """List the runs of the workspace."""
    from timonel.cli.render import runs as render
    from timonel.cli.render.output import console, print_json
    from timonel.tracking import list_runs
    from timonel.tracking.queries import Query
    from timonel.training.outcomes import with_outcomes

    query = Query.parse(where or (), sort)
    earliest = _parse_since(since)
    workspace = GlobalOptions.of(ctx).find()
    every = with_outcomes(workspace, list_runs(workspace))
    models = models_of(every)
    found = [
        run
        for run in every
        if kind in {None, run.kind}
        and status in {None, run.status}
        and (name is None or fnmatch.fnmatchcase(run.name or "", name))
        and (model is None or _made(models.get(run.id, ()), model))
        and (earliest is None or run.started_at >= earliest)
    ]
    found = query.select(found)
    shown = found[:limit] if limit > 0 else found
    if json:
        print_json({"runs": [render.run_json(run) for run in shown]})
    elif every and not found:
        typer.echo(f"none of {len(every)} runs matches: 'timonel runs' lists them")
    elif shown:
        out = console()
        out.print(render.run_list(shown, models, out.width))
        if len(shown) < len(found):
            typer.echo(f"and {len(found) - len(shown)} more: --limit 0 shows all")
    else:
        typer.echo("No runs. 'timonel convert' and 'timonel train' create them.")


@app.command(cls=StyledCommand)
def show(
    ctx: typer.Context,
    run: Annotated[
        str,
        typer.Argument(help="Run ID, ID prefix, name, or 'last'.", autocompletion=completion.runs),
    ] = "last",
    json: Json = False,
) -> None:
    """Show a run: parameters, metrics, inputs and outputs."""
    from timonel.cli.render import runs as render
    from timonel.cli.render.output import console, print_json
    from timonel.tracking import read_run
    from timonel.training.outcomes import with_outcomes

    workspace = GlobalOptions.of(ctx).find()
    (record,) = with_outcomes(workspace, [read_run(workspace, run)])
    if json:
        print_json(render.run_json(record, full=True))
    else:
        console().print(render.run_page(record))


@app.command(cls=StyledCommand)
def compare(
    ctx: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Two or more runs: IDs, ID prefixes or names.", autocompletion=completion.runs
        ),
    ],
    json: Json = False,
) -> None:
    """Compare runs: different parameters, and last values of metrics."""
    from timonel.cli.render import runs as render
    from timonel.cli.render.output import console, print_json
    from timonel.tracking import read_run

    if len(runs) == 1:
        raise SpecError("a comparison needs two or more runs", hint="'timonel runs' lists them")
    workspace = GlobalOptions.of(ctx).find()
    records = [read_run(workspace, run) for run in runs]
    if json:
        print_json(render.comparison_json(records))
    else:
        console().print(render.comparison(records))


def models_of(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return the model versions published by or exported from each run, by run id."""
    exports = [run for run in runs if run.kind == "export"]
    made: dict[str, list[str]] = {}
    for run in reversed(exports):
        versions = [item.label for item in run.outputs if item.type == "model"]
        # An export that failed early, or that was recorded elsewhere, may name no run.
        for source in filter(None, (run.id, run.params.get("run"))):
            made.setdefault(str(source), []).extend(versions)
    return made


def _made(versions: Sequence[str], model: str) -> bool:
    return any(model in {each, each.partition("/")[0]} for each in versions)


def _parse_since(text: str | None) -> float | None:
    """Parse a local date (2026-01-31) or an age (2d) to Unix seconds."""
    if text is None:
        return None
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        pass
    try:
        return time.time() - parse_seconds(text)
    except SpecError:
        raise SpecError(
            f"--since {text!r} is neither a date nor an age", hint="as in 2026-01-31, 12h or 7d"
        ) from None


add_delete(
    app,
    "run",
    "Delete runs with the logs and checkpoints of their jobs.",
    "A run that a model version or another run was made from is kept.",
)

"""``timonel lineage``: show the provenance of runs, models and data."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from timonel.cli import completion
from timonel.cli.groups import Json, StyledCommand, single
from timonel.cli.settings import GlobalOptions

app = single()


@app.command(cls=StyledCommand)
def lineage(
    ctx: typer.Context,
    ref: Annotated[
        str,
        typer.Argument(
            help="Run, model, model/version, model@alias, digest, or path of a dataset or raw "
            "file.",
            autocompletion=completion.runs,
        ),
    ] = "last",
    direction: Annotated[
        Literal["both", "upstream", "downstream"],
        typer.Option(help="Show sources, products, or both."),
    ] = "both",
    json: Json = False,
) -> None:
    """Trace a dataset, run or model to its sources and products."""
    from timonel.cli.render.output import console, print_json
    from timonel.tracking import as_json, as_rich
    from timonel.tracking import lineage as find_lineage

    graph = find_lineage(GlobalOptions.of(ctx).find(), ref, direction=direction)
    if json:
        print_json(as_json(graph))
    else:
        console().print(as_rich(graph), markup=True)

"""``timonel data``: list, show and verify datasets."""

from __future__ import annotations

from typing import Annotated

import typer

from timonel.cli.commands.convert import convert
from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.settings import GlobalOptions

app = noun("Convert, list, show and verify datasets.")
app.command("convert", cls=StyledCommand)(convert)

DATASET = typer.Argument(help="Folder of the dataset.")


@app.command("list", cls=StyledCommand)
def list_(ctx: typer.Context, json: Json = False) -> None:
    """List datasets made by runs of this workspace."""
    from timonel.cli.render.output import clock, console, iso, print_json
    from timonel.cli.render.tables import table
    from timonel.tracking import list_runs

    runs = list_runs(GlobalOptions.of(ctx).find(), kind="convert")
    made = {
        item.uri: (run, item) for run in reversed(runs) for item in run.outputs
    }  # the latest run that wrote to a URI counts
    if json:
        print_json(
            {
                "datasets": [
                    {
                        "name": item.name,
                        "uri": item.uri,
                        "digest": item.digest,
                        "records": item.metadata.get("records"),
                        "created_at": iso(run.started_at),
                        "run": run.id,
                    }
                    for run, item in made.values()
                ]
            }
        )
        return
    if not made:
        typer.echo("No datasets. Create one with 'timonel convert SOURCE DESTINATION'.")
        return
    rows = [
        (item.label, item.metadata.get("records"), item.short_digest, clock(run.started_at), uri)
        for uri, (run, item) in made.items()
    ]
    console().print(table(("NAME", "RECORDS", "DIGEST", "CREATED", "PATH"), rows, wide=4))


@app.command(cls=StyledCommand)
def show(dataset: Annotated[str, DATASET], json: Json = False) -> None:
    """Show a dataset: schema, labels and splits."""
    from timonel.cli.render import datasets as render
    from timonel.cli.render.output import console, print_json
    from timonel.data import Dataset, summarise

    opened = Dataset.open(dataset)
    if json:
        print_json(render.dataset_json(opened))
    else:
        console(whole=True).print(render.dataset_page(summarise(opened)))


@app.command(cls=StyledCommand)
def verify(dataset: Annotated[str, DATASET], json: Json = False) -> None:
    """Verify the digest of every shard."""
    from timonel.cli.render.output import print_json
    from timonel.data import Dataset

    opened = Dataset.open(dataset)
    opened.verify()
    shards = len(opened.manifest.shards)
    if json:
        print_json({"uri": opened.uri, "shards": shards, "records": opened.count()})
        return
    typer.echo(f"{dataset}: {shards} shards, {opened.count():,} records, all digests match")

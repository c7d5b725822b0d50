"""``timonel init``: write a project that runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from timonel.cli.groups import Command, single

app = single()


class Kind(StrEnum):
    """The projects there are."""

    IMAGE = "image"
    TABLE = "table"


@app.command(cls=Command)
def init(
    kind: Annotated[Kind, typer.Argument(help="What the data is.", metavar="image|table")],
    folder: Annotated[Path, typer.Argument(help="Where to write the project.")] = Path(),
    data: Annotated[
        bool, typer.Option("--data/--no-data", help="Write real sample data beside the script.")
    ] = True,
) -> None:
    """Write a project that runs: a training script and its commands.

    Files that exist are never overwritten.
    """
    from timonel.cli.project import write_project

    written = write_project(kind.value, folder, with_data=data)
    for path in written:
        typer.echo(f"wrote {path}{'/' if path.is_dir() else ''}")
    place = f"cd {folder} && " if folder != Path() else ""
    source = {"image": "digits data/digits", "table": "patients.csv data/patients"}[kind]
    label = " --label progression" if kind is Kind.TABLE else ""
    typer.echo(f"next: {place}timonel convert {source}{label}")
    typer.echo(f"then: what {folder / 'README.md'} shows")

"""``timonel init``: create a sample project."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from timonel.cli.groups import StyledCommand, single
from timonel.cli.settings import GlobalOptions

app = single()


class ProjectType(StrEnum):
    """Type of project."""

    IMAGE = "image"
    TABLE = "table"


_SOURCES = {
    (ProjectType.IMAGE, True): "digits data/digits",
    (
        ProjectType.IMAGE,
        False,
    ): "IMAGES data/images    # IMAGES: your folder, with a folder per label",
    (ProjectType.TABLE, True): "patients.csv data/patients --label progression",
    (ProjectType.TABLE, False): "ROWS.csv data/rows --label COLUMN    # your file and its label",
}
"""Arguments of the suggested ``timonel convert``, with and without sample data."""


@app.command(cls=StyledCommand)
def init(
    ctx: typer.Context,
    kind: Annotated[
        ProjectType, typer.Argument(help="Type of data: image or table.", metavar="TYPE")
    ],
    folder: Annotated[Path, typer.Argument(help="Folder of the project.")] = Path(),
    data: Annotated[
        bool, typer.Option("--data/--no-data", help="Write sample data beside the script.")
    ] = True,
) -> None:
    """Create a sample project with a training script.

    Existing files are never overwritten.
    """
    from timonel.cli.project import write_project
    from timonel.storage.workspace import FOLDER_NAME, find_workspace

    settings = GlobalOptions.of(ctx)
    shared = settings.shared_workspace(folder)
    written = write_project(kind.value, folder, with_data=data)
    for path in written:
        typer.echo(f"wrote {path}{'/' if path.is_dir() else ''}")
    place = f"cd {folder} && " if folder != Path() else ""
    if shared is not None:
        # Without its own workspace it would share the runs and models of the parent project.
        find_workspace(folder / FOLDER_NAME)
        typer.echo(f"made {folder / FOLDER_NAME}/, as {shared} belongs to a project above")
    hints = settings.remarks()
    hints.print(f"next: {place}timonel convert {_SOURCES[kind, data]}", soft_wrap=True)
    hints.print(f"then: follow {folder / 'README.md'}", soft_wrap=True)

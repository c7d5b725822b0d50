"""``timonel migrate``: lift a workspace to the formats of this release."""

from __future__ import annotations

import typer

from timonel.cli.groups import Command, single
from timonel.cli.settings import Settings

app = single()


@app.command(cls=Command)
def migrate(ctx: typer.Context) -> None:
    """Lift the workspace to the formats of this release.

    All or nothing: a document that cannot be lifted leaves everything as it was.
    """
    from timonel.storage.migrations import migrate_workspace

    root = Settings.of(ctx).find().root
    lifted = migrate_workspace(root)
    for each in lifted:
        place = each.path.relative_to(root)
        typer.echo(f"{place}: {each.kind} format {each.from_format} to {each.to_format}")
    typer.echo(f"{root}: {len(lifted)} documents lifted" if lifted else f"{root}: nothing to lift")

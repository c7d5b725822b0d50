"""``timonel migrate``: upgrade a workspace to the formats of this release."""

from __future__ import annotations

import typer

from timonel.cli.groups import Json, StyledCommand, single
from timonel.cli.settings import GlobalOptions

app = single()


@app.command(cls=StyledCommand)
def migrate(
    ctx: typer.Context,
    json: Json = False,
) -> None:
    """Upgrade the workspace to the file formats of this release.

    If one document cannot be upgraded, nothing changes.
    """
    from timonel.cli.render.output import print_json
    from timonel.storage.documents import migrate_workspace
    from timonel.storage.workspace import bucket_error

    workspace = GlobalOptions.of(ctx).find()
    if workspace.is_remote:
        raise bucket_error("migrate", workspace.uri)
    root = workspace.root
    upgraded = migrate_workspace(root)
    if json:
        documents = [
            {
                "path": str(each.path),
                "kind": each.kind,
                "from_format": each.from_format,
                "to_format": each.to_format,
            }
            for each in upgraded
        ]
        print_json({"workspace": str(root), "migrated": documents})
        return
    for each in upgraded:
        place = each.path.relative_to(root)
        typer.echo(f"{place}: {each.kind} format {each.from_format} to {each.to_format}")
    typer.echo(
        f"{root}: {len(upgraded)} documents upgraded" if upgraded else f"{root}: nothing to upgrade"
    )

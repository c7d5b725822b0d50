"""``timonel migrate``: lift a workspace to the formats of this release."""

from __future__ import annotations

import typer

from timonel.cli.groups import Command, single
from timonel.cli.settings import Settings

app = single()


@app.command(cls=Command)
def migrate(ctx: typer.Context) -> None:
    """Lift the workspace to the formats of this release.

    Documents of a format that is still read are left as they are.
    """
    from timonel.storage.migrations import migrate as lift

    root = Settings.of(ctx).find().root
    report = lift(root)
    for path in report.lifted:
        typer.echo(f"lifted {path}")
    for path, reason in report.refused:
        typer.echo(f"left {path}: {reason}")
    typer.echo(
        f"{root}: {report.current} documents in the present format, {len(report.lifted)} lifted, "
        f"{len(report.refused)} left"
    )
    if report.refused:
        raise typer.Exit(4)

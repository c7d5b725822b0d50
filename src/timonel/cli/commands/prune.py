"""``timonel prune``: delete what is old and no longer needed."""

from __future__ import annotations

from typing import Annotated

import typer

from timonel.cli.deletion import DryRun, Force, Yes, report
from timonel.cli.groups import Json, StyledCommand, single
from timonel.cli.settings import GlobalOptions

app = single()


@app.command(cls=StyledCommand)
def prune(
    ctx: typer.Context,
    *,
    older_than: Annotated[str, typer.Option(help="Age, such as 30d.", metavar="TIME")],
    keep_last: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many of each kind of run, of studies and of each model's versions stay, "
            "whatever their age.",
        ),
    ] = 0,
    dry_run: DryRun = False,
    yes: Yes = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Delete old runs, studies and model versions; see their sizes.

    Runs go with their jobs, studies with their trials, and datasets only if they are in the
    workspace. What has an alias, what an endpoint uses, and what remaining items were made from
    is kept. Endpoints stay.
    """
    import timonel

    report(
        lambda consent: timonel.prune(
            older_than=older_than,
            keep_last=keep_last,
            workspace=GlobalOptions.of(ctx).workspace,
            force=force,
            dry_run=dry_run,
            consent=consent,
        ),
        yes=yes,
        json=json,
        dry_run=dry_run,
    )

"""``timonel export``: a run's model becomes a version."""

from __future__ import annotations

from typing import Annotated

import typer

from timonel.cli.groups import Command, single
from timonel.cli.settings import Settings

app = single()


@app.command(cls=Command)
def export(
    ctx: typer.Context,
    run: Annotated[
        str, typer.Argument(help="A training run: an id, the beginning of one, a name, or 'last'.")
    ] = "last",
    *,
    name: Annotated[str, typer.Option(help="The model's name.")],
    repository: Annotated[
        str | None, typer.Option(help="Where versions go; the workspace by default.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check the export on raw held-out inputs.")
    ] = True,
    data_root: Annotated[
        str | None, typer.Option(help="Where the raw files are now, if they were moved.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Publish even if the check fails.")
    ] = False,
    optimize: Annotated[
        bool,
        typer.Option("--optimize/--no-optimize", help="Measure which runtime computes it best."),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Publish the model of a run as the next version of a name.

    Before that, raw held-out inputs are fed to the exported model, and what it answers is
    compared with what training predicted.
    """
    import timonel
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.status import Steps

    settings = Settings.of(ctx)
    with Steps(settings.remarks(stderr=json)) as steps:
        version = timonel.export(
            run,
            name=name,
            workspace=settings.find(),
            repository=repository,
            check=check,
            data_root=data_root,
            force=force,
            optimize=optimize,
            progress=steps,
        )
    if json:
        print_json(render.version_json(version))
        return
    console().print(render.version_page(version))
    settings.remarks().print(f"next: timonel serve {version.name}", style="dim", soft_wrap=True)

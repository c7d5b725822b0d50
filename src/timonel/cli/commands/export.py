"""``timonel export``: publish a run's model as a version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli import completion
from timonel.cli.groups import Json, StyledCommand, single
from timonel.cli.settings import GlobalOptions

if TYPE_CHECKING:
    from timonel.models import ModelVersion
    from timonel.storage import Workspace

app = single()


@app.command(cls=StyledCommand)
def export(
    ctx: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            help="Run: ID, ID prefix, name, or 'last'.",
            autocompletion=completion.runs,
        ),
    ] = "last",
    *,
    name: Annotated[str, typer.Option(help="Model name.")],
    repository: Annotated[
        str | None, typer.Option(help="Repository of versions. [default: the workspace]")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check the export with raw held-out inputs.")
    ] = True,
    data_root: Annotated[
        str | None, typer.Option(help="New location of the raw files, if they have moved.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Publish even if the check fails.")
    ] = False,
    optimize: Annotated[
        bool,
        typer.Option("--optimize/--no-optimize", help="Measure runtimes and choose the fastest."),
    ] = True,
    alias: Annotated[
        str | None, typer.Option(help="Alias for the new version, such as champion.")
    ] = None,
    if_better: Annotated[
        str | None,
        typer.Option(
            help="Move the alias only if the version is better than the one that has it, by this "
            "metric on the same held-out records: accuracy, mae or rmse.",
            metavar="METRIC",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Publish the model of a run as the next version of a name.

    Nothing is published unless the exported model predicts the same for raw held-out inputs as the
    training pipeline.
    """
    import timonel
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Steps

    settings = GlobalOptions.of(ctx)
    workspace = settings.find()
    with Steps(settings.remarks(stderr=json)) as steps:
        version = timonel.export(
            run,
            name=name,
            workspace=workspace,
            repository=repository,
            check=check,
            data_root=data_root,
            force=force,
            optimize=optimize,
            alias=alias,
            if_better=if_better,
            progress=steps,
        )
    if json:
        print_json(render.VERSION.json(version))
        return
    if settings.quiet:
        typer.echo(f"{version.name}/{version.number}")
        return
    console().print(render.version_page(version, workspace.uri_of(version.uri)))
    line = f"next: {_next_command(workspace, version)}"
    settings.remarks().print(line, style="dim", soft_wrap=True)


def _next_command(workspace: Workspace, version: ModelVersion) -> str:
    """Return the command that serves a version where its run trained it."""
    from timonel.engines import DEFAULT_ENGINE, service_engine_names
    from timonel.tracking import read_run

    engine = read_run(workspace, version.run_id).header.engine if version.run_id else None
    if engine == DEFAULT_ENGINE or engine not in service_engine_names():
        return f"timonel serve {version.name}"
    return f"timonel deploy {version.name} --on {engine}"

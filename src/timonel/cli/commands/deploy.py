"""``timonel deploy``: put a model version behind an endpoint."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from timonel.cli import completion
from timonel.cli.exposure import exposure
from timonel.cli.groups import Json, StyledCommand, single
from timonel.cli.options import is_given, takes
from timonel.cli.settings import GlobalOptions
from timonel.endpoints.deploy_options import DeployOptions
from timonel.errors import TimonelError

app = single()


@app.command(cls=StyledCommand)
@takes(DeployOptions)
def deploy(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="Model: name, name/version, name@alias, or folder of versions.",
            autocompletion=completion.models,
        ),
    ],
    server_args: Annotated[
        list[str] | None,
        typer.Argument(help="Arguments after '--' go to 'timonel serve'.", metavar="[-- ARGS]"),
    ] = None,
    *,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the endpoint can answer.")
    ] = True,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the objects of a cluster as YAML; create none."),
    ] = False,
    json: Json = False,
    **options: Any,
) -> None:
    """Deploy a model as an endpoint: one address, replicas that follow load.

    MODEL/VERSION gives all requests to a version once it is ready; MODEL@ALIAS to that of an alias,
    also after it moves, and MODEL@latest to each new version. Without them, an existing endpoint
    keeps its traffic.
    """
    from rich.text import Text

    import timonel
    from timonel.cli.render import endpoints as render
    from timonel.cli.render.output import console, print_json

    settings = GlobalOptions.of(ctx)
    given = {name: value for name, value in options.items() if is_given(ctx, name)}
    if dry_run:
        from timonel.cli.render.output import print_objects
        from timonel.endpoints.launch import preview

        place, extra = settings.workspace, server_args or ()
        objects = preview(model, workspace=place, server_args=extra, **given)
        print_objects(objects, as_json=json)
        return
    remarks = settings.remarks(stderr=json)
    endpoint = timonel.deploy(
        model,
        workspace=settings.workspace,
        server_args=server_args or (),
        wait=wait,
        on_change=render.printer_of_messages(remarks),
        **given,
    )
    if json:
        print_json(render.ENDPOINT.json(endpoint))
        return
    spec, out = endpoint.spec, console()
    revision = endpoint.revision
    effect = f" is revision {revision.number}: {revision.cause}"
    out.print(Text.assemble((endpoint.name, "bold"), effect), soft_wrap=True)
    out.print(f"  REST  {endpoint.url}/v1/models/{spec.model_name}", soft_wrap=True)
    out.print(f"  gRPC  {endpoint.url.partition('://')[2]}", soft_wrap=True)
    access = spec.access
    risk = exposure(
        spec.host,
        has_credentials=bool(access.api_keys or access.jwt),
        has_tls=access.tls is not None,
    )
    if risk and endpoint.is_local:
        remarks.print(f"warning: {risk}", soft_wrap=True)
    if (outside := endpoint.outside) is not None:
        out.print(f"  host  {outside.host}, from outside the cluster", soft_wrap=True)
    if (page_url := endpoint.page_url) is not None:
        out.print(f"  page  {page_url}", soft_wrap=True)
    if wait and endpoint.is_local:
        from timonel.cli.examples import example_request

        with contextlib.suppress(TimonelError):  # it requires a key, say
            line = example_request(
                endpoint.local_url,
                spec.model_name,
                endpoint.workspace,
                max(spec.traffic.percent, key=spec.traffic.percent.__getitem__),
            )
            remarks.print(f"try: {line}", soft_wrap=True)
    remarks.print(
        f"'timonel endpoints show {endpoint.name}' shows replicas and traffic; "
        f"'timonel endpoints delete {endpoint.name}' stops it",
        style="dim",
        soft_wrap=True,
    )

"""``timonel image``: build container images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.settings import GlobalOptions
from timonel.errors import SpecError

app = noun("Build container images without Docker.")


@app.command(cls=StyledCommand)
def build(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE", help="HOST/REPOSITORY:TAG to push to, or oci:FOLDER[:TAG] to write."
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the code: the files that git does not ignore.",
            show_default="the current folder; with --server, none",
        ),
    ] = None,
    *,
    server: Annotated[
        bool,
        typer.Option(
            "--server", help="Run timonel-model-server, as TensorFlow Serving's image does."
        ),
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE|self",
            help="Base image, oci:FOLDER[:TAG], or 'self' for this machine's Python.",
            show_default="the official image of this Python",
        ),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Requirements or lock file to install with uv.",
            show_default="the packages of this environment",
        ),
    ] = None,
    platform: Annotated[
        list[str] | None,
        typer.Option(
            help="Platform such as linux/arm64; repeat it.", show_default="this machine's"
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Variable; repeat it.")
    ] = None,
    site_packages: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Where the Python of the base looks for packages.",
            show_default="as in the official images",
        ),
    ] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Use registries without TLS.")
    ] = False,
    json: Json = False,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND]",
            help="What a container runs; with --server, its flags. [default: python3]",
        ),
    ] = None,
) -> None:
    """Build an image of a folder's code and push it to a registry.

    The base, packages, timonel and the code are layers: only those that changed are built and
    uploaded. The same inputs give the same bytes.
    """
    from timonel.cli.render.output import console, print_json
    from timonel.containers import ImageSpec, build_image

    remarks = console(stderr=True, quiet=json or GlobalOptions.of(ctx).quiet)
    spec = ImageSpec(
        folder or (None if server else Path()),
        **({} if base is None else {"base": base}),
        requirements=requirements,
        command=tuple(command or ()),
        server=server,
        platforms=tuple(platform or ()),
        site_packages=site_packages,
        environment=dict(_variable(text) for text in env or ()),
    )
    built = build_image(
        spec,
        target,
        plain_http=plain_http or None,
        progress=lambda line: remarks.print(line, style="dim"),
    )
    for reason in dict.fromkeys(built.left_out.values()):
        names = ", ".join(name for name, each in built.left_out.items() if each == reason)
        remarks.print(f"left out of the image, {reason}: {names}", soft_wrap=True)
    if not built.has_dependencies:
        remarks.print(
            "the image has no dependencies of timonel, unless its base has: for jobs and servers, "
            "add 'timonel[kubernetes,s3,endpoints]' to the requirements file",
        )
    if json:
        print_json(
            {
                "image": built.name,
                "digest": built.digest,
                "uploaded_bytes": built.uploaded_bytes,
                "left_out": list(built.left_out),
            }
        )
        return
    typer.echo(built.name)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise SpecError(f"expected NAME=VALUE, got {text!r}")
    return name, value

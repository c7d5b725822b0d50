"""``timonel serve``: serve models over REST and gRPC."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timonel.cli import completion
from timonel.cli.exposure import exposure
from timonel.cli.groups import StyledCommand, single
from timonel.cli.options import given, takes
from timonel.cli.settings import GlobalOptions
from timonel.errors import Interrupted, ServingError, SpecError
from timonel.logs import printable
from timonel.serving.serve_options import ADDRESSES, OF_ENDPOINTS, ServeOptions

if TYPE_CHECKING:
    from timonel.serving import Server

app = single()


class _ServeCommand(StyledCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for flag in (each.partition("=")[0] for each in args):
            if flag in OF_ENDPOINTS:
                raise SpecError(
                    f"{flag}: a server checks no tokens and no rates",
                    hint="serve the model at an endpoint: timonel deploy",
                )
        return super().parse_args(ctx, args)


@app.command(cls=_ServeCommand)
@takes(ServeOptions)
def serve(
    ctx: typer.Context,
    model: Annotated[
        list[str] | None,
        typer.Argument(
            help="Models: name, name/version, name@alias, folder of versions, or bucket URI.",
            autocompletion=completion.models,
        ),
    ] = None,
    foreground: Annotated[
        bool,
        typer.Option(
            "--foreground",
            help="Serve in this process and log to standard error, for containers and service "
            "managers.",
            rich_help_panel=ADDRESSES,
        ),
    ] = False,
    **options: Any,
) -> None:
    """Serve a model over REST and gRPC, as TensorFlow Serving does.

    New versions are loaded while it serves; deleting the newest returns to the previous one. With
    NAME@ALIAS, the version of the alias is served, and another one when the alias moves.
    Ctrl-C finishes pending requests, then exits.
    """
    import timonel

    settings, detach = GlobalOptions.of(ctx), options["detach"]
    if foreground:
        if detach:
            raise SpecError("a server runs either in the foreground or detached")
        from timonel.serving.launch import run_server

        run_server(model or (), workspace=settings.workspace, **given(options))
        return
    # A server that requires client certificates, or has sockets, cannot be asked from here.
    can_ask = not (options["tls_client_ca"] is not None or options["host"].startswith("unix:"))
    risk = exposure(
        options["host"],
        has_credentials=bool(options["api_keys"] or options["tls_client_ca"]),
        has_tls=bool(options["tls_cert"]),
    )
    if risk:
        typer.echo(f"warning: {risk}", err=True)
    with contextlib.ExitStack() as opened:

        def announce(server: Server) -> None:
            # Import nothing after announcing Ctrl-C: if a KeyboardInterrupt comes while a dataclass
            # is created, Python ends the process by SIGINT even if the exception is caught.
            from timonel.cli.watch import following

            _announce(server, settings, detach=detach, can_ask=can_ask, page=options["page"])
            if not detach and not settings.quiet:
                opened.enter_context(following(server.log_path, _print_change))

        try:
            timonel.serve(
                model or (),
                workspace=settings.workspace,
                block=not detach,
                on_ready=announce,
                on_warning=lambda line: typer.echo(printable(line), err=True),
                **given(options),
            )
        except KeyboardInterrupt:
            raise Interrupted("interrupted before the server was ready") from None
    typer.echo("runs in the background" if detach else "stopped")


def _announce(
    server: Server, settings: GlobalOptions, *, detach: bool, can_ask: bool, page: bool
) -> None:
    """Print the server's addresses and an example request."""
    from rich.text import Text

    from timonel.cli.examples import example_request
    from timonel.cli.render.output import console

    out, remarks = console(), settings.remarks()
    models = [name for name in server.models if name not in server.idle] or [*server.models]
    out.print("serving", Text(", ".join(models), "bold"))
    if server.idle:
        idle = Text(f"not serving {', '.join(server.idle)}", "yellow")
        out.print(idle + ": the log says why", soft_wrap=True)
    out.print(f"  REST  {server.rest_url}/v1/models/{models[0]}", soft_wrap=True)
    if page:
        out.print(f"  page  {server.rest_url}/", soft_wrap=True)
    out.print(f"  gRPC  {server.grpc_address or 'off'}", soft_wrap=True)
    out.print(f"  log   {server.log_path}", soft_wrap=True, style="dim")
    for name in models if can_ask else ():
        with contextlib.suppress(ServingError):  # it has ended: serve() reports the error
            line = example_request(server, name, settings.find(create=True))
            remarks.print(f"try: {line}", soft_wrap=True)
    if not detach:
        remarks.print("Ctrl-C stops it", style="dim")


def _print_change(line: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')}  {line}")

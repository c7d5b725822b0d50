"""``timonel serve``: serve models over REST and gRPC."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from timonel.cli.groups import Command, single
from timonel.cli.settings import Settings

if TYPE_CHECKING:
    from timonel.serving import Server

app = single()

GRPC_OFF = -1

# Help sections.
MODELS = "Models and versions"
ADDRESSES = "Addresses"
COMPUTE = "Compute"
TRUST = "What models may do"
ACCESS = "TLS, keys and tokens"
LIMITS = "Limits"
TELEMETRY = "Traces and logs"


@app.command(cls=Command)
def serve(
    ctx: typer.Context,
    model: Annotated[
        list[str] | None,
        typer.Argument(help="Models: name, name/version, folder of versions, or bucket URI."),
    ] = None,
    *,
    config: Annotated[
        str | None,
        typer.Option(
            help="ModelServerConfig text file instead of models; changes are followed.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    resource_preserving: Annotated[
        list[str] | None,
        typer.Option(
            help="Model that keeps one version in memory at a time; * for all.",
            rich_help_panel=MODELS,
        ),
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="Serve this version only.", rich_help_panel=MODELS)
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Listen address; 0.0.0.0 for all interfaces.", rich_help_panel=ADDRESSES),
    ] = "127.0.0.1",
    rest_port: Annotated[
        int, typer.Option(help="REST port; 0 picks a free one.", rich_help_panel=ADDRESSES)
    ] = 8501,
    grpc_port: Annotated[
        int,
        typer.Option(
            help=f"gRPC port; 0 picks a free one, {GRPC_OFF} turns gRPC off.",
            rich_help_panel=ADDRESSES,
        ),
    ] = 8500,
    poll_s: Annotated[
        float, typer.Option(help="Seconds between checks for new versions.", rich_help_panel=MODELS)
    ] = 1.0,
    model_cache: Annotated[
        Path | None,
        typer.Option(help="Cache folder of versions from buckets.", rich_help_panel=MODELS),
    ] = None,
    model_cache_size: Annotated[
        str, typer.Option(help="Maximum size of that cache, such as 50GB.", rich_help_panel=MODELS)
    ] = "20GiB",
    compute_threads: Annotated[
        int | None,
        typer.Option(
            help="Threads for large and unbatched requests. [default: one per core]",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    op_threads: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Threads per model operation; 0 lets TensorFlow choose. [default: 1 on up to two "
            "cores, else 0]",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    drain_s: Annotated[
        float,
        typer.Option(
            help="Seconds to finish pending requests at shutdown.", rich_help_panel=COMPUTE
        ),
    ] = 30.0,
    hang_timeout_s: Annotated[
        float | None,
        typer.Option(
            help="Restart a version's process if requests are pending and it stays silent so long.",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            help="tensorflow, litert, or auto (the default); digits=litert for one model.",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    safe_loading: Annotated[
        bool,
        typer.Option(
            "--safe-loading/--no-safe-loading",
            help="Refuse models that can access files or run Python.",
            rich_help_panel=TRUST,
        ),
    ] = True,
    allow_ops: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-op",
            help="Allow this operation: ReadFile, or digits=ReadFile for one model.",
            rich_help_panel=TRUST,
        ),
    ] = None,
    allow_python: Annotated[
        list[str] | None,
        typer.Option(
            help="Allow this model's versions to run Python as your user; * for all.",
            rich_help_panel=TRUST,
        ),
    ] = None,
    hooks: Annotated[
        list[str] | None,
        typer.Option(
            help="Python hooks: hooks.py, or digits=hooks.py for one model.",
            rich_help_panel=TRUST,
        ),
    ] = None,
    isolation: Annotated[
        Literal["process", "none"],
        typer.Option(
            help="'process': one process per version; 'none': versions run in the server.",
            rich_help_panel=COMPUTE,
        ),
    ] = "process",
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="Serve over TLS with this certificate chain, in PEM.", rich_help_panel=ACCESS
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key of the certificate.", rich_help_panel=ACCESS)
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            help="Require client certificates from these authorities.", rich_help_panel=ACCESS
        ),
    ] = None,
    tls_client_optional: Annotated[
        bool,
        typer.Option(
            "--tls-client-optional",
            help="Make client certificates optional for REST.",
            rich_help_panel=ACCESS,
        ),
    ] = False,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="Require API keys from this file, made by 'timonel keys'.", rich_help_panel=ACCESS
        ),
    ] = None,
    jwt_issuer: Annotated[
        str | None,
        typer.Option(
            help="Accept tokens of this issuer, such as an OpenID provider's URL.",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    jwt_audience: Annotated[
        str | None,
        typer.Option(help="Required audience of tokens.", rich_help_panel=ACCESS),
    ] = None,
    jwt_jwks: Annotated[
        str | None,
        typer.Option(
            help="File or URL of the issuer's keys. [default: from the issuer]",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    jwt_allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Permissions of every valid token, such as predict:digits-*.",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    rate_limit: Annotated[
        str | None,
        typer.Option(
            help="Request rate per client, such as 100/s or 600/min:20.", rich_help_panel=LIMITS
        ),
    ] = None,
    model_rate_limit: Annotated[
        str | None,
        typer.Option(help="Request rate per model, in the same form.", rich_help_panel=LIMITS),
    ] = None,
    max_body: Annotated[
        str | None,
        typer.Option(help="Maximum request size, such as 64MiB, or none.", rich_help_panel=LIMITS),
    ] = "32MiB",
    max_requests: Annotated[
        int | None,
        typer.Option(
            help="Maximum concurrent requests; others are refused.", rich_help_panel=LIMITS
        ),
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(
            help="Maximum connections per port; others are refused.", rich_help_panel=LIMITS
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Also accept this Host header, for example behind a reverse proxy.",
            rich_help_panel=ADDRESSES,
        ),
    ] = None,
    allow_reload: Annotated[
        bool,
        typer.Option(
            "--allow-reload",
            help="Let clients replace the list of models over gRPC without credentials.",
            rich_help_panel=ADDRESSES,
        ),
    ] = False,
    page: Annotated[
        bool,
        typer.Option(
            "--page/--no-page",
            help="Serve a page at / with models, plots and a form.",
            rich_help_panel=ADDRESSES,
        ),
    ] = True,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", help="Send OpenTelemetry spans of requests.", rich_help_panel=TELEMETRY
        ),
    ] = False,
    request_log: Annotated[
        Path | None,
        typer.Option(
            help="Folder for sampled requests, as PredictionLogs.", rich_help_panel=TELEMETRY
        ),
    ] = None,
    request_log_rate: Annotated[
        float, typer.Option(help="Fraction of requests to sample.", rich_help_panel=TELEMETRY)
    ] = 0.01,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Return immediately; stop it with 'timonel servers stop'.",
            rich_help_panel=ADDRESSES,
        ),
    ] = False,
) -> None:
    """Serve a model over REST and gRPC, as TensorFlow Serving does.

    New versions are loaded while it serves; deleting the newest returns to the previous one.
    Ctrl-C finishes pending requests, then exits.
    """
    import timonel
    from timonel.serving.auth.options import Options, access_settings

    access = access_settings(
        Options(
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            tls_client_optional=tls_client_optional,
            api_keys=api_keys,
            jwt_issuer=jwt_issuer,
            jwt_audience=jwt_audience,
            jwt_jwks=jwt_jwks,
            jwt_allow=tuple(jwt_allow or ()),
            rate_limit=rate_limit,
            model_rate_limit=model_rate_limit,
            max_body=max_body,
            max_requests=max_requests,
            max_connections=max_connections,
            allow_host=tuple(allow_host or ()),
            allow_reload=allow_reload,
        )
    )
    settings = Settings.of(ctx)
    with contextlib.ExitStack() as watches:
        timonel.serve(
            model or (),
            config=config,
            resource_preserving=resource_preserving or (),
            workspace=settings.workspace,
            version=version,
            host=host,
            rest_port=rest_port,
            grpc_port=None if grpc_port == GRPC_OFF else grpc_port,
            block=not detach,
            detach=detach,
            poll_s=poll_s,
            model_cache=model_cache,
            model_cache_size=model_cache_size,
            compute_threads=compute_threads,
            op_threads=op_threads,
            drain_s=drain_s,
            hang_timeout_s=hang_timeout_s,
            runtime=runtime or (),
            safe_loading=safe_loading,
            allow_ops=allow_ops or (),
            allow_python=allow_python or (),
            hooks=hooks or (),
            isolation=isolation,
            access=access,
            page=page,
            trace=trace,
            request_log=request_log,
            request_log_rate=request_log_rate,
            on_ready=lambda server: _announce(
                server,
                settings,
                watches,
                detach=detach,
                asks=tls_client_ca is None or tls_client_optional,
                page=page,
            ),
        )
    typer.echo("runs in the background" if detach else "stopped")


def _announce(
    server: Server,
    settings: Settings,
    watches: contextlib.ExitStack,
    *,
    detach: bool,
    asks: bool,
    page: bool,
) -> None:
    """Print the server's addresses and an example request, then watch for changes."""
    from timonel.cli.render.output import console

    # Import nothing after announcing Ctrl-C: if a KeyboardInterrupt comes while a dataclass is
    # created, Python ends the process by SIGINT even if the exception is caught.
    from timonel.cli.watch import Watch
    from timonel.errors import ServingError

    out, remarks = console(), settings.remarks()
    out.print(f"serving [bold]{', '.join(server.models)}[/bold]")
    out.print(f"  REST  {server.rest_url}/v1/models/{server.models[0]}", soft_wrap=True)
    if page:
        out.print(f"  page  {server.rest_url}/", soft_wrap=True)
    out.print(f"  gRPC  {server.grpc_address or 'off'}", soft_wrap=True)
    out.print(f"  log   {server.log_path}", soft_wrap=True, style="dim")
    for name in server.models if asks else ():
        with contextlib.suppress(ServingError):  # it has ended: serve() reports the error
            remarks.print(f"try: {_ask_line(server, settings, name)}", soft_wrap=True, markup=False)
    if not detach:
        remarks.print("Ctrl-C stops it", style="dim")
    if not asks:
        out.print("loads and unloads are in the log only: asking takes a client certificate")
    if detach:
        return
    for name in server.models if asks and not settings.quiet else ():
        watches.enter_context(Watch(server.rest_url, name, _tell, server.caller))


def _tell(line: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')}  {line}")


def _ask_line(server: Server, settings: Settings, name: str) -> str:
    from timonel.cli.examples import held_out_image
    from timonel.errors import TimonelError
    from timonel.models import ModelRepository
    from timonel.serving import curl_example

    workspace = settings.find(create=True)
    image = None
    with contextlib.suppress(TimonelError):  # the model is served from another folder
        image = held_out_image(ModelRepository(workspace.models).get(name), workspace)
    return curl_example(server, name, image=image or "some_image.png")

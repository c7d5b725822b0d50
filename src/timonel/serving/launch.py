"""Start a server process from Python, a notebook or the command line.

The calling process never imports TensorFlow. A crash of the server raises an error here and does
not kill the notebook.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from pydantic import ValidationError

from timonel.errors import NotFoundError, ServingError, SpecError
from timonel.options import documented, with_defaults
from timonel.processes.spawn import describe_exit
from timonel.serving.auth import AccessSettings
from timonel.serving.handle import Server, launch
from timonel.serving.manager.model_config import TextProtoError, read_models
from timonel.serving.references import resolve, workspace_for
from timonel.serving.runtimes.python.permission import check_files, python_settings
from timonel.serving.serve_options import Reference, ServeOptions
from timonel.serving.settings import (
    LoadSettings,
    ModelSettings,
    MonitoringSettings,
    RequestLogSettings,
    RestSettings,
    RuntimeSettings,
    ServerSettings,
    default_op_threads,
)
from timonel.serving.settings.base import EVERY_MODEL, as_spec_error
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.settings.runtime import ComputeSettings, by_model, runtime_choice
from timonel.serving.status import StatusError
from timonel.storage import Workspace, local_path
from timonel.units import parse_bytes

GRPC_OFF = -1
"""gRPC port that turns gRPC off."""


@documented(ServeOptions)
def serve(
    model: Reference | Sequence[Reference] = (),
    *,
    workspace: Workspace | Reference | None = None,
    block: bool = True,
    on_ready: Callable[[Server], None] | None = None,
    **options: Unpack[ServeOptions],
) -> Server:
    """Serve models over TensorFlow Serving's REST and gRPC APIs.

    New versions are loaded while the server runs; deleting the newest version falls back to the
    previous one. Without API keys, tokens or client certificates, everyone who can reach the ports
    may use the server.

    Args:
        model: A model of the workspace (``digits``), one of its versions (``digits/3``), a folder
            of numbered versions, its URI in a bucket (``s3://models/digits``), or several of these.
        workspace: The workspace, or its path.
        block: Return when the server has ended, instead of when it is ready.
        on_ready: Called with the server once it is ready, before blocking.
        **options: See `ServeOptions`.

    Raises:
        NotFoundError: The model does not exist or has no version.
        SpecError: An option has an invalid value.
        ServingError: A port is in use, or no version can be loaded; with ``block``, also if the
            server was killed or failed.
    """
    several = [model] if isinstance(model, str | os.PathLike) else list(model)
    options = with_defaults(ServeOptions, options)
    settings, place = _settings(several, workspace, options)
    server = launch(settings, place, detach=options["detach"])
    code = 0
    try:
        if on_ready is not None:
            on_ready(server)
        if block:
            code = server.wait()
    except KeyboardInterrupt:
        code = server.stop()
        if not block:
            raise
        # Once announced, the server shuts down cleanly on Ctrl-C, however early.
    except BaseException:
        server.stop()
        raise
    if code:
        raise ServingError(
            f"The server {describe_exit(code)}",
            hint=f"start it again; its log is {server.log_path}",
        )
    return server


def run_server(
    models: Sequence[Reference],
    *,
    workspace: Workspace | Reference | None = None,
    **options: Unpack[ServeOptions],
) -> None:
    """Serve in this process until SIGTERM, and log to standard error.

    Must be called in the main thread of a dedicated process, such as that of a container.

    Args:
        models: See `serve`.
        workspace: The workspace, or its path.
        **options: See `ServeOptions`.

    Raises:
        NotFoundError: The model does not exist or has no version.
        SpecError: An option has an invalid value.
        ServingError: A port is in use, or no version can be loaded.
    """
    settings, _ = _settings(models, workspace, with_defaults(ServeOptions, options))
    from timonel.serving import server  # noqa: PLC0415 - other callers run it elsewhere

    server.configure_logging()
    server.run(settings)


def _settings(
    models: Sequence[Reference], workspace: Workspace | Reference | None, options: ServeOptions
) -> tuple[ServerSettings, Workspace]:
    """Return the server's settings and workspace."""
    config = options["config"]
    if bool(models) == (config is not None):
        raise SpecError(
            "a server needs either models or a config that names them, got "
            f"{'both' if models else 'neither'}"
        )
    grpc_port = None if options["grpc_port"] == GRPC_OFF else options["grpc_port"]
    if options["rest_port"] == grpc_port != 0:
        raise SpecError(
            f"REST and gRPC cannot share the port {grpc_port}", hint="give them different ports"
        )
    if config is None:
        file = None
        place = workspace_for(workspace, models)
        served = tuple(resolve(each, place, options["version"]) for each in models)
        python = python_settings(
            options["allow_python"], options["hooks"], [each.name for each in served]
        )
    else:
        file = local_path(config)
        if not file.exists():
            raise NotFoundError(
                f"config file {file} does not exist", hint="write a ModelServerConfig there"
            )
        place = workspace_for(workspace, [file.absolute().parent])
        served = _configured(file)
        python = python_settings(options["allow_python"], options["hooks"])
    check_files(python)
    if config is None:
        _check_names(options["batching"], served)
    runtime, cache = options["runtime"], options["model_cache"]
    try:
        settings = ServerSettings(
            models=_logged(served, options),
            config_file=None if file is None else str(file),
            config_poll_s=options["poll_s"],
            host=options["host"],
            rest_port=options["rest_port"],
            grpc_port=grpc_port,
            rest=RestSettings(page=options["page"]),
            compute_threads=options["compute_threads"] or min(8, max(2, os.cpu_count() or 2)),
            drain_s=options["drain_s"],
            load=LoadSettings(
                poll_s=options["poll_s"],
                settle_s=options["poll_s"],
                resource_preserving=tuple(options["resource_preserving"]),
                model_cache=None if cache is None else str(local_path(cache)),
                model_cache_bytes=parse_bytes(options["model_cache_size"]),
            ),
            runtime=RuntimeSettings(
                **runtime_choice([runtime] if isinstance(runtime, str) else runtime),
                safe_loading=options["safe_loading"],
                allow_ops=by_model(options["allow_ops"], "an operation"),
                intra_op_threads=_op_threads(options),
                batching=AdaptiveBatching(assumed=tuple(options["batching"])),
            ),
            isolation=options["isolation"],
            compute=ComputeSettings(hang_timeout_s=options["hang_timeout_s"]),
            python=python,
            access=access_settings(options),
            monitoring=MonitoringSettings(tracing=options["trace"]),
            servers_folder=str(place.servers),
        )
    except ValidationError as error:
        raise as_spec_error(error) from error
    return settings, place


def _check_names(names: Sequence[str], served: Sequence[ModelSettings]) -> None:
    known = {EVERY_MODEL, *(model.name for model in served)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SpecError(
            f"--batching names {unknown[0]}, which is not served",
            hint=f"the models are: {', '.join(model.name for model in served)}",
        )


def _op_threads(options: ServeOptions) -> int:
    return default_op_threads() if options["op_threads"] is None else options["op_threads"]


def _logged(models: Sequence[ModelSettings], options: ServeOptions) -> tuple[ModelSettings, ...]:
    """Return the models with their request logs."""
    if options["request_log"] is None:
        return tuple(models)
    if options["config"] is not None:
        raise SpecError(
            "request_log cannot be used with a config",
            hint="give each model of the config a logging_config",
        )
    folder, rate = Path(options["request_log"]).absolute(), options["request_log_rate"]
    logs = [
        RequestLogSettings(filename_prefix=str(folder / model.name), sampling_rate=rate)
        for model in models
    ]
    return tuple(
        model.model_copy(update={"request_log": log})
        for model, log in zip(models, logs, strict=True)
    )


def _configured(file: Path) -> tuple[ModelSettings, ...]:
    """Return the models of a ModelServerConfig."""
    try:
        models = read_models(str(file))
    except TextProtoError as error:
        raise SpecError(f"{file} is not a ModelServerConfig: {error.diagnosis}") from error
    except StatusError as error:
        raise SpecError(error.message) from error
    if not models:
        raise SpecError(f"{file} names no models")
    return models


def access_settings(options: ServeOptions) -> AccessSettings:
    """Return the settings for authentication, limits and TLS.

    A server that requires credentials gets a secret owner key, with which the process that starts
    it monitors it. The key is never written to disk.

    Raises:
        SpecError: An option has an invalid value, or requires another option.
    """
    options = with_defaults(ServeOptions, options)
    _check_companions(options)
    certificate, issuer, jwks = options["tls_cert"], options["jwt_issuer"], options["jwt_jwks"]
    body = options["max_body"]
    try:
        access = AccessSettings.model_validate(
            {
                "api_keys": _absolute(options["api_keys"]),
                "jwt": None
                if issuer is None
                else {
                    "issuer": issuer,
                    "audience": options["jwt_audience"],
                    "jwks": jwks if jwks is None or "://" in jwks else _absolute(jwks),
                    "allow": tuple(options["jwt_allow"]),
                },
                "tls": None
                if certificate is None
                else {
                    "certificate": _absolute(certificate),
                    "key": _absolute(options["tls_key"]),
                    "client_ca": _absolute(options["tls_client_ca"]),
                    "client_certificates": (
                        "optional" if options["tls_client_optional"] else "required"
                    ),
                },
                "limits": {
                    "max_body": None if body == "none" else body,
                    "principal_rate": options["rate_limit"],
                    "model_rate": options["model_rate_limit"],
                    "max_requests": options["max_requests"],
                    "max_connections": options["max_connections"],
                },
                "allowed_hosts": tuple(options["allow_host"]),
                "open_reload": options["allow_reload"],
            }
        )
    except ValidationError as error:
        raise as_spec_error(error) from error
    if access.is_closed:
        return access.model_copy(update={"owner_key": secrets.token_urlsafe(32)})
    return access


_COMPANIONS = {
    "tls_cert": "tls_key",
    "tls_key": "tls_cert",
    "tls_client_ca": "tls_cert",
    "tls_client_optional": "tls_client_ca",
    "jwt_issuer": "jwt_audience",
    "jwt_audience": "jwt_issuer",
    "jwt_jwks": "jwt_issuer",
    "jwt_allow": "jwt_issuer",
}
"""Options that require another one."""


def _check_companions(options: Mapping[str, Any]) -> None:
    for name, companion in _COMPANIONS.items():
        if options[name] not in (None, False, ()) and options[companion] is None:
            flag, other = (f"--{each.replace('_', '-')}" for each in (name, companion))
            raise SpecError(f"{flag} requires {other}")


def _absolute(path: Reference | None) -> str | None:
    return None if path is None else str(Path(path).absolute())

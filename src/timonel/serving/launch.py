"""Start a server process from Python, a notebook or the command line.

The calling process never imports TensorFlow. A crash of the server raises an error here and does
not kill the notebook.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from timonel.errors import ServingError, SpecError
from timonel.serving.auth import AccessSettings
from timonel.serving.handle import Server, launch
from timonel.serving.isolation.zygote_client import ended
from timonel.serving.manager.config_file import read_models
from timonel.serving.manager.model_config import TextProtoError
from timonel.serving.references import resolve, workspace_for
from timonel.serving.runtimes.python.options import check_files, python_settings
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
from timonel.serving.settings.errors import as_spec_error
from timonel.serving.settings.isolation import ComputeSettings, Isolation
from timonel.serving.settings.per_model import by_model, runtime_choice
from timonel.serving.status import StatusError
from timonel.storage import Workspace, local_path
from timonel.units import parse_bytes

Reference = str | os.PathLike[str]


def serve(  # noqa: PLR0913 - the command line's options, by its names
    model: Reference | Sequence[Reference] = (),
    *,
    config: Reference | None = None,
    workspace: Workspace | Reference | None = None,
    version: int | None = None,
    host: str = "127.0.0.1",
    rest_port: int = 8501,
    grpc_port: int | None = 8500,
    block: bool = True,
    detach: bool = False,
    poll_s: float = 1.0,
    compute_threads: int | None = None,
    op_threads: int | None = None,
    drain_s: float = 30.0,
    hang_timeout_s: float | None = None,
    runtime: str | Sequence[str] = (),
    safe_loading: bool = True,
    allow_ops: Sequence[str] = (),
    allow_python: Sequence[str] = (),
    hooks: Sequence[Reference] = (),
    resource_preserving: Sequence[str] = (),
    model_cache: Reference | None = None,
    model_cache_size: str | int = "20GiB",
    isolation: Isolation = "process",
    access: AccessSettings | None = None,
    page: bool = True,
    trace: bool = False,
    request_log: Reference | None = None,
    request_log_rate: float = 0.01,
    on_ready: Callable[[Server], None] | None = None,
) -> Server:
    """Serve models over TensorFlow Serving's REST and gRPC APIs.

    New versions are loaded while the server runs; deleting the newest version falls back to the
    previous one.

    Args:
        model: A model of the workspace (``digits``), one of its versions (``digits/3``), a folder
            of numbered versions, its URI in a bucket (``s3://models/digits``), or several of these.
        config: A file with a ModelServerConfig in text format, as for TensorFlow Serving; replaces
            ``model``. The server follows changes of the file.
        workspace: The workspace, or its path.
        version: Serve this version only.
        host: The address to listen on; the default accepts connections from this machine only.
        rest_port: The REST port; 0 picks a free one.
        grpc_port: The gRPC port; 0 picks a free one, None turns gRPC off.
        block: Return when the server has ended, instead of when it is ready.
        detach: Let the server outlive this process.
        poll_s: Interval in seconds at which to look for new versions.
        compute_threads: Threads that parse large requests, and compute requests where batching is
            off; by default one per core, at most 8.
        op_threads: Threads within one operation of a model; by default 1 on up to two cores, as
            each core computes its own batch, and TensorFlow's choice on more.
        drain_s: Time in seconds for in-flight requests to finish when the server stops.
        hang_timeout_s: Restart a version's process if it has pending requests and sends nothing for
            this many seconds; off by default. Must be longer than any request takes.
        runtime: The runtime: ``tensorflow``, ``litert``, another name from the entry points
            ``timonel.runtimes``, or by default ``auto``, which follows the evidence in each
            version; ``digits=litert`` for one model.
        safe_loading: Reject SavedModels with operations that could do more than compute: access
            files, use the network, run Python.
        allow_ops: Operations to trust nevertheless, such as ``ReadFile``, or ``digits=ReadFile``
            for one model.
        allow_python: Models whose versions may contain Python that runs as the server's user: a
            Python model, or hooks; ``*`` for all.
        hooks: Python files with hooks for pre- and postprocessing of requests, each for all models,
            or for one as in ``digits=hooks.py``.
        resource_preserving: Models whose old version is unloaded before the new one is loaded, so
            that two are never in memory; ``*`` for all.
        model_cache: The local folder to cache versions from buckets in; by default
            ``timonel/models`` in the user's cache.
        model_cache_size: Maximum size of that cache, such as ``50GB``. Versions that no server uses
            are evicted, least recently used first.
        isolation: ``process`` runs each version in its own process, so that a crash interrupts only
            that version for a moment; ``none`` computes in the server.
        access: Authentication, limits and TLS; by default everyone who can reach the ports may use
            the server, with limits on sizes only.
        page: Serve a web page at ``/`` of the REST port: models, live plots, and a form to try a
            model.
        trace: Send OpenTelemetry spans to ``OTEL_EXPORTER_OTLP_ENDPOINT``; requires the extra
            ``otel``.
        request_log: A folder to write a sample of requests and responses to, as PredictionLogs in
            TFRecord files that start with the model's name.
        request_log_rate: The fraction of requests to log.
        on_ready: Called with the server once it is ready, before blocking.

    Raises:
        NotFoundError: The model does not exist or has no version.
        SpecError: A setting has an invalid value.
        ServingError: A port is in use, or no version can be loaded; with ``block``, also if the
            server was killed or failed.
    """
    several = [model] if isinstance(model, str | os.PathLike) else list(model)
    if bool(several) == (config is not None):
        raise SpecError(
            "expected models to serve, or a config that names them, got "
            f"{'both' if several else 'neither'}"
        )
    if config is not None and request_log is not None:
        raise SpecError(
            "expected either a config or a request_log, got both",
            hint="give each model of the config a logging_config",
        )
    _check_ports(rest_port, grpc_port)
    file = None if config is None else local_path(config)
    place = workspace_for(workspace, several if file is None else [file.parent])
    models = (
        tuple(resolve(each, place, version) for each in several)
        if file is None
        else _configured(file)
    )
    names = [each.name for each in models] if file is None else None
    python = python_settings(allow_python, hooks, names)
    check_files(python)
    try:
        settings = ServerSettings(
            models=_logged(models, request_log, request_log_rate),
            config_file=None if file is None else str(file),
            config_poll_s=poll_s,
            host=host,
            rest_port=rest_port,
            grpc_port=grpc_port,
            rest=RestSettings(page=page),
            compute_threads=compute_threads or min(8, max(2, os.cpu_count() or 2)),
            drain_s=drain_s,
            load=LoadSettings(
                poll_s=poll_s,
                settle_s=poll_s,
                resource_preserving=tuple(resource_preserving),
                model_cache=None if model_cache is None else str(local_path(model_cache)),
                model_cache_bytes=parse_bytes(model_cache_size),
            ),
            runtime=RuntimeSettings(
                **runtime_choice([runtime] if isinstance(runtime, str) else runtime),
                safe_loading=safe_loading,
                allow_ops=by_model(allow_ops, "an operation"),
                intra_op_threads=default_op_threads() if op_threads is None else op_threads,
            ),
            isolation=isolation,
            compute=ComputeSettings(hang_timeout_s=hang_timeout_s),
            python=python,
            access=_owned(access or AccessSettings()),
            monitoring=MonitoringSettings(tracing=trace),
            servers_folder=str(place.servers),
        )
    except ValidationError as error:
        raise as_spec_error(error) from error
    server = launch(settings, place, detach=detach)
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
            f"The server {ended(code)}",
            hint=f"start it again; its log is {server.log_path}",
        )
    return server


def _check_ports(rest_port: int, grpc_port: int | None) -> None:
    if rest_port == grpc_port != 0:
        raise SpecError(
            f"REST and gRPC cannot share the port {rest_port}", hint="give them different ports"
        )


def _logged(
    models: Sequence[ModelSettings], folder: Reference | None, rate: float
) -> tuple[ModelSettings, ...]:
    if folder is None:
        return tuple(models)
    place = Path(folder).absolute()
    return tuple(
        model.model_copy(
            update={
                "request_log": RequestLogSettings(
                    filename_prefix=str(place / model.name), sampling_rate=rate
                )
            }
        )
        for model in models
    )


def _owned(access: AccessSettings) -> AccessSettings:
    """Add a secret owner key to monitor a server that requires credentials.

    The key is never written to disk.
    """
    if not access.is_closed:
        return access
    return access.model_copy(update={"owner_key": secrets.token_urlsafe(32)})


def _configured(file: Path) -> tuple[ModelSettings, ...]:
    try:
        models = read_models(str(file))
    except TextProtoError as error:
        raise SpecError(f"expected a ModelServerConfig in {file}, got {error.diagnosis}") from error
    except StatusError as error:
        raise SpecError(error.message) from error
    if not models:
        raise SpecError(f"expected models in {file}, got none")
    return models

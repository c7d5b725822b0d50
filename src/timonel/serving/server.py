"""Run a server inside its process: ports, models, frontends, graceful shutdown.

As in TensorFlow Serving, models are loaded before the ports are opened; here, port conflicts are
detected first. TensorFlow is imported on the way, so this module does not import it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import uvloop

from timonel.processes.descriptors import raise_limit
from timonel.processes.ports import UNIX
from timonel.processes.tree import REPLICA
from timonel.serving.auth.access import ServerAccess
from timonel.serving.frontends import Frontends
from timonel.serving.manager.catalogue import Catalogue
from timonel.serving.manager.manager import ModelManager
from timonel.serving.manager.model_config import ConfigFollower
from timonel.serving.memory import exempt_imports, limit_heap
from timonel.serving.ports import authority, bind, grpc_address
from timonel.serving.rest_server import bind_rest
from timonel.serving.runtimes._private import import_tensorflow
from timonel.serving.selection.auto import ServerRuntime
from timonel.serving.selection.choice import needs_tensorflow
from timonel.serving.server_records import ServerRecord, remove_record, write_record
from timonel.serving.settings.server import ServerSettings
from timonel.serving.telemetry.monitor import Monitor
from timonel.serving.telemetry.request_log import RequestLog
from timonel.serving.telemetry.tracing import make_tracer
from timonel.serving.version_loader import VersionLoader

_LOG = logging.getLogger(__name__)

Ready = Callable[[ServerRecord], None]


def run(
    settings: ServerSettings,
    *,
    on_ready: Ready | None = None,
    leash: int | None = None,
    log: str | None = None,
    owner: int | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then shut down gracefully.

    Must be called in the main thread of a dedicated process: it takes over signals and garbage
    collection.

    Args:
        on_ready: Called once, when the server accepts requests.
        leash: A file descriptor; the server also stops when the other end is closed.
        log: The log file of this process, for the server's record.
        owner: PID of the process to signal, for the record; by default this one.
    """
    raise_limit()
    limit_heap()
    with contextlib.ExitStack() as held:
        _run(settings, held, on_ready, leash, partial(_record, log=log, owner=owner or os.getpid()))


def _run(
    settings: ServerSettings,
    held: contextlib.ExitStack,
    on_ready: Ready | None,
    leash: int | None,
    record_of: Callable[..., ServerRecord],
) -> None:
    access = ServerAccess(settings.access)
    rest_socket = bind_rest(settings)
    if rest_socket is not None:
        held.enter_context(rest_socket)
    grpc_port = _free_grpc_port(settings)
    catalogue = Catalogue()
    tracer = None
    if settings.monitoring.tracing:
        tracer, provider = make_tracer()
        held.callback(provider.shutdown)
    monitor = Monitor(catalogue, tracer)
    recorder = RequestLog(monitor.logged)
    recorder.configure(settings.models)
    loader = VersionLoader(settings, ServerRuntime(settings), monitor)
    if grpc_port is not None or settings.grpc.socket_path is not None:
        importlib.import_module("timonel.serving.protocols.v2.service")
    exempt_imports()
    manager = ModelManager(
        settings.models, loader.load, settings.load, catalogue, recorder.configure
    )
    manager.start()
    held.callback(manager.stop)
    frontends = Frontends(
        settings, catalogue, manager, rest_socket, grpc_port, access, monitor, recorder
    )
    if needs_tensorflow(settings.models, settings.runtime):
        import_tensorflow()  # while the manager lists versions
    manager.wait_until_settled()
    idle = tuple(model.name for model in settings.models if not catalogue.loaded(model.name))
    record = record_of(settings, access.scheme, rest_socket, grpc_port, idle)
    if settings.config_file is not None and settings.config_poll_s > 0:
        held.enter_context(
            ConfigFollower(settings.config_file, settings.config_poll_s, manager.reconfigure)
        )
    recorder.start()
    held.callback(recorder.stop)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(frontends, settings, record, on_ready, leash))


async def _serve(
    frontends: Frontends,
    settings: ServerSettings,
    record: ServerRecord,
    on_ready: Ready | None,
    leash: int | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if leash is not None:
        loop.add_reader(leash, _on_leash, leash, stop)
    async with frontends.opened():
        with _registered(settings.servers_folder, record):
            _LOG.info(
                "serving %s at %s",
                ", ".join(name for name in record.models if name not in record.idle) or "no models",
                record.rest_url or record.grpc_address,
            )
            if on_ready is not None:
                on_ready(record)
            await stop.wait()
            _LOG.info("stopping: in-flight requests have %g s", settings.drain_s)


def _on_leash(leash: int, stop: asyncio.Event) -> None:
    if not os.read(leash, 4096):
        asyncio.get_running_loop().remove_reader(leash)
        stop.set()


def _record(
    settings: ServerSettings,
    scheme: str,
    rest: socket.socket | None,
    grpc_port: int | None,
    idle: tuple[str, ...],
    *,
    log: str | None,
    owner: int,
) -> ServerRecord:
    return ServerRecord(
        pid=owner,
        process_started=psutil.Process(owner).create_time(),
        models=tuple(model.name for model in settings.models),
        rest_url="" if rest is None else _rest_url(rest, scheme),
        grpc_address=None if grpc_port is None else grpc_address(settings.host, grpc_port),
        started=time.time(),
        log=log,
        replica=os.environ.get(REPLICA),
        idle=idle,
    )


def _rest_url(bound: socket.socket, scheme: str) -> str:
    name = bound.getsockname()
    if bound.family == socket.AF_UNIX:
        return f"{UNIX}{name}"
    return f"{scheme}://{authority(*name[:2])}"


def _free_grpc_port(settings: ServerSettings) -> int | None:
    """Check that the gRPC port is free; gRPC binds it later."""
    if settings.grpc_port is None or settings.host.startswith(UNIX):
        return settings.grpc_port
    with bind(settings.host, settings.grpc_port, "gRPC") as bound:
        port: int = bound.getsockname()[1]
    return port


@contextlib.contextmanager
def _registered(folder: str | None, record: ServerRecord) -> Iterator[None]:
    if folder is None:
        yield
        return
    write_record(Path(folder), record)
    try:
        yield
    finally:
        remove_record(Path(folder), record.pid)

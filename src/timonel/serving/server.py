"""Run a server inside its process: ports, models, frontends, graceful shutdown.

As in TensorFlow Serving, models are loaded before the ports are opened; here, port conflicts are
detected first. TensorFlow is imported on the way, so this module does not import it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import uvloop

from timonel.errors import ServingError
from timonel.processes.descriptors import raise_limit
from timonel.processes.tree import REPLICA
from timonel.serving.auth.access import Access
from timonel.serving.frontends import Frontends
from timonel.serving.inference import DataPlane
from timonel.serving.manager.catalogue import Catalogue
from timonel.serving.manager.manager import Load, ModelManager
from timonel.serving.manager.model_config import followed
from timonel.serving.memory import (
    give_back,
    return_large_blocks,
    share_arenas,
    start_trimming,
)
from timonel.serving.ports import authority, bind
from timonel.serving.rest_server import bind_rest
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.selection.factory import runtime_for
from timonel.serving.server_records import ServerRecord, remove_record, write_record
from timonel.serving.settings import ServerSettings
from timonel.serving.status import StatusError
from timonel.serving.telemetry.telemetry import Telemetry

_LOG = logging.getLogger(__name__)

_MIB = 2**20

Ready = Callable[[ServerRecord], None]


def run(
    settings: ServerSettings,
    *,
    on_ready: Ready | None = None,
    leash: int | None = None,
    log: str | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then shut down gracefully.

    Must be called in the main thread of a dedicated process: it takes over signals and garbage
    collection.

    Args:
        settings: The server's settings.
        on_ready: Called once, when the server accepts requests.
        leash: A file descriptor; the server also stops when the other end is closed.
        log: The log file of this process, for the server's record.

    Raises:
        ServingError: A port cannot be bound, or a model has no version that can be loaded.
    """
    raise_limit()
    share_arenas()
    if settings.isolation == "none":
        # TensorFlow's buffers are in this process: mapping each of them individually would be slow.
        return_large_blocks(mmap_bytes=32 * _MIB, trim_bytes=16 * _MIB)
    else:
        return_large_blocks(mmap_bytes=4 * _MIB, trim_bytes=4 * _MIB)
    start_trimming()
    with contextlib.ExitStack() as held:
        _run(settings, held, on_ready, leash, log)


def _run(
    settings: ServerSettings,
    held: contextlib.ExitStack,
    on_ready: Ready | None,
    leash: int | None,
    log: str | None,
) -> None:
    access = Access(settings.access)
    rest_socket = bind_rest(settings)
    if rest_socket is not None:
        held.enter_context(rest_socket)
    grpc_port = _free_grpc_port(settings)
    catalogue = Catalogue()
    prepared = threading.Event()
    telemetry = Telemetry(settings, catalogue)
    runtime = runtime_for(settings, telemetry.batches_of, telemetry.name_of)
    held.callback(runtime.close)
    load = telemetry.loading(
        lambda path: runtime.load(path, settings.runtime.of(telemetry.name_of(path)))
    )
    manager = ModelManager(
        settings.models, _load_when(prepared, load), settings.load, catalogue, telemetry.configure
    )
    # Scan the disk while TensorFlow is imported.
    manager.start()
    held.callback(manager.stop)
    held.callback(prepared.set)
    plane = DataPlane(catalogue, manager, telemetry.recorder)
    frontends = Frontends(settings, plane, rest_socket, grpc_port, access, telemetry)
    with_grpc = grpc_port is not None or settings.grpc.socket_path is not None
    _prepare(runtime, with_grpc=with_grpc)
    prepared.set()
    manager.wait_until_settled()
    record = _record(settings, access.scheme, rest_socket, grpc_port, log)
    with (
        followed(settings, manager.reconfigure),
        telemetry.running(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
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
                ", ".join(record.models) or "no models",
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
    log: str | None,
) -> ServerRecord:
    return ServerRecord(
        pid=os.getpid(),
        process_started=psutil.Process().create_time(),
        models=tuple(model.name for model in settings.models),
        rest_url="" if rest is None else f"{scheme}://{authority(*rest.getsockname()[:2])}",
        grpc_address=None if grpc_port is None else authority(settings.host, grpc_port),
        started=time.time(),
        log=log,
        replica=os.environ.get(REPLICA),
    )


def _free_grpc_port(settings: ServerSettings) -> int | None:
    """Check that the gRPC port is free; gRPC binds it later."""
    if settings.grpc_port is None:
        return None
    with bind(settings.host, settings.grpc_port, "gRPC") as bound:
        port: int = bound.getsockname()[1]
    return port


def _load_when(prepared: threading.Event, load: Load) -> Load:
    def waiting(path: Path) -> LoadedModel:
        prepared.wait()
        loaded = load(path)
        give_back()
        return loaded

    return waiting


def _prepare(runtime: Runtime, *, with_grpc: bool) -> None:
    """Import slow modules, then exempt them from garbage collection.

    Requests with nested lists trigger full collections, each of which would traverse the million
    objects of TensorFlow's modules. Models are loaded after this, so that garbage of an unloaded
    model is still collected.
    """
    if with_grpc:
        # First: with process isolation, the runtime is imported by another process in parallel.
        importlib.import_module("timonel.serving.protocols.v2.service")
    try:
        runtime.prepare()
    except StatusError as error:
        raise ServingError(f"Cannot import the runtime: {error.message}") from error
    gc.collect()
    gc.freeze()
    give_back()


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


def configure_logging() -> None:
    """Log to standard error."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # At this level, grpc.aio and uvicorn log what this server logs itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # TensorFlow warns about the API that this server calls, not about the model.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)

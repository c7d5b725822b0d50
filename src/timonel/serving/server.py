"""A server, inside its own process: ports, models, skins, and an end without a failed request.

The order is that of TensorFlow Serving, with the clashes first: take the ports, load the models,
only then listen. TensorFlow is imported on the way, so this module does not import it.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import uvicorn
import uvloop

from timonel.errors import ServingError
from timonel.serving.access.front import Access
from timonel.serving.compute.choice import runtime_for
from timonel.serving.config import RuntimeSettings, ServerSettings
from timonel.serving.config_file import followed
from timonel.serving.core import DataPlane
from timonel.serving.loader import Loader
from timonel.serving.ports import authority, bind
from timonel.serving.registry import ServerRecord, remove_record, write_record
from timonel.serving.rest.app import RestApp
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.servables import Catalogue
from timonel.serving.status import StatusError

_LOG = logging.getLogger(__name__)
_KEEP_ALIVE_S = 75

Ready = Callable[[ServerRecord], None]


def run(
    settings: ServerSettings,
    *,
    on_ready: Ready | None = None,
    leash: int | None = None,
    log: str | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then end in good order.

    Must be called in the main thread of a process of its own: it takes over signals and garbage
    collection.

    Args:
        settings: What to serve, where and how.
        on_ready: Called once, when requests are answered.
        leash: A file descriptor; the server also ends when its other side is closed.
        log: The file this process's output goes to, for the server's document.

    Raises:
        ServingError: A port cannot be taken, or a model has no version that can be loaded.
    """
    access = Access(settings.access)
    rest_socket = bind(settings.host, settings.rest_port, "REST")
    grpc_port = _reserve_grpc(settings)
    catalogue = Catalogue()
    prepared = threading.Event()
    runtime = runtime_for(settings)
    loader = Loader(
        settings.models, _load_when(prepared, runtime, settings.runtime), settings.load, catalogue
    )
    # The disk is watched while TensorFlow is imported.
    loader.start()
    try:
        _prepare(runtime, with_grpc=grpc_port is not None)
        prepared.set()
        loader.wait_until_settled()
        with (
            followed(settings, loader.reconfigure),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(
                _Listening(
                    settings, DataPlane(catalogue, loader), rest_socket, grpc_port, access
                ).serve(on_ready, leash, log)
            )
    finally:
        prepared.set()
        loader.stop()
        runtime.close()
        rest_socket.close()


class _Listening:
    """The time between opened and closed ports."""

    def __init__(
        self,
        settings: ServerSettings,
        plane: DataPlane,
        rest_socket: socket.socket,
        grpc_port: int | None,
        access: Access,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._rest_socket = rest_socket
        self._grpc_port = grpc_port
        self._access = access
        self._stop = asyncio.Event()

    async def serve(self, on_ready: Ready | None, leash: int | None, log: str | None) -> None:
        self._listen_for_the_end(leash)
        with ThreadPoolExecutor(self._settings.compute_threads, "compute") as pool:
            grpc_server = await self._start_grpc(pool)
            rest_server = self._rest_server(pool)
            rest_task = asyncio.create_task(rest_server.serve(sockets=[self._rest_socket]))
            await _started(rest_server, rest_task)
            record = self._record(log)
            with _registered(self._settings.servers_folder, record):
                _LOG.info("serving %s at %s", ", ".join(record.models), record.rest_url)
                if on_ready is not None:
                    on_ready(record)
                await self._stop.wait()
                _LOG.info("stopping: requests under way have %g s", self._settings.drain_s)
            rest_server.should_exit = True
            if grpc_server is not None:
                await grpc_server.stop(self._settings.drain_s)
            await rest_task

    def _listen_for_the_end(self, leash: int | None) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if leash is not None:
            loop.add_reader(leash, self._on_leash, leash)

    def _on_leash(self, leash: int) -> None:
        if not os.read(leash, 4096):
            asyncio.get_running_loop().remove_reader(leash)
            self._stop.set()

    async def _start_grpc(self, pool: ThreadPoolExecutor) -> Any:
        if self._grpc_port is None:
            return None
        from timonel.serving.grpc.options import GrpcOptions  # noqa: PLC0415 - only with gRPC
        from timonel.serving.grpc.server import GrpcServer  # noqa: PLC0415 - only with gRPC

        address = authority(self._settings.host, self._grpc_port)
        try:
            guard = self._access.grpc_guard()
            server = GrpcServer(
                self._plane,
                pool,
                GrpcOptions(address=address, channel_arguments=guard.arguments),
                credentials=guard.credentials,
                interceptors=guard.interceptors,
            )
        except RuntimeError as error:
            raise ServingError(f"expected to listen on {address} for gRPC, got {error}") from error
        await server.start()
        return server

    def _rest_server(self, pool: ThreadPoolExecutor) -> uvicorn.Server:
        config = uvicorn.Config(
            self._access.guarded(RestApp(self._plane, pool, self._stop.is_set)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(self._settings.drain_s)),
            **self._access.uvicorn_options(),
        )
        return _QuietServer(config)

    def _record(self, log: str | None) -> ServerRecord:
        host, rest_port = self._settings.host, self._rest_socket.getsockname()[1]
        return ServerRecord(
            pid=os.getpid(),
            process_started=psutil.Process().create_time(),
            models=tuple(model.name for model in self._settings.models),
            rest_url=f"{self._access.scheme}://{authority(host, rest_port)}",
            grpc_address=None if self._grpc_port is None else authority(host, self._grpc_port),
            started=time.time(),
            log=log,
        )


class _QuietServer(uvicorn.Server):
    """Uvicorn, with signals left to us: two servers end together here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _reserve_grpc(settings: ServerSettings) -> int | None:
    """Check that the gRPC port is free, long before gRPC binds it."""
    if settings.grpc_port is None:
        return None
    with bind(settings.host, settings.grpc_port, "gRPC") as reserved:
        port: int = reserved.getsockname()[1]
    return port


def _load_when(
    prepared: threading.Event, runtime: Runtime, settings: RuntimeSettings
) -> Callable[[Path], LoadedModel]:
    def load(path: Path) -> LoadedModel:
        prepared.wait()
        return runtime.load(path, settings)

    return load


def _prepare(runtime: Runtime, *, with_grpc: bool) -> None:
    """Import what is slow to import, then take it out of the garbage collector's sight.

    Requests with nested lists set off full collections, and each would walk over the million
    objects of TensorFlow's modules. Models are loaded after this, so that what an unloaded one
    leaves behind is still collected.
    """
    if with_grpc:
        # First: where versions are kept apart, the runtime is imported elsewhere meanwhile.
        importlib.import_module("timonel.serving.grpc.server")
    try:
        runtime.prepare()
    except StatusError as error:
        raise ServingError(
            f"expected the runtime to be imported, got an error: {error.message}"
        ) from error
    gc.collect()
    gc.freeze()


async def _started(server: uvicorn.Server, task: asyncio.Task[None]) -> None:
    while not server.started:
        if task.done():
            task.result()
            raise ServingError("expected REST to start, but it ended")
        await asyncio.sleep(0.005)


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

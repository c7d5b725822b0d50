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
import uvloop

from timonel.errors import ServingError
from timonel.serving.access.front import Access
from timonel.serving.compute.choice import runtime_for
from timonel.serving.config import ServerSettings
from timonel.serving.config_file import followed
from timonel.serving.core import DataPlane
from timonel.serving.dialect import DIALECTS
from timonel.serving.instruments import Instruments
from timonel.serving.loader import Load, Loader
from timonel.serving.ports import authority, bind
from timonel.serving.registry import ServerRecord, remove_record, write_record
from timonel.serving.rest.app import RestApp
from timonel.serving.rest.options import RestOptions
from timonel.serving.rest_server import RestServer, bind_rest
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.servables import Catalogue
from timonel.serving.status import StatusError

_LOG = logging.getLogger(__name__)

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
    rest_socket = bind_rest(settings)
    grpc_port = _reserve_grpc(settings)
    catalogue = Catalogue()
    prepared = threading.Event()
    instruments = Instruments(settings, catalogue, lambda: loader.models)
    runtime = runtime_for(settings, instruments.batches_of)
    load = instruments.loading(lambda path: runtime.load(path, settings.runtime))
    loader = Loader(settings.models, _load_when(prepared, load), settings.load, catalogue)
    # The disk is watched while TensorFlow is imported.
    loader.start()
    try:
        _prepare(runtime, with_grpc=grpc_port is not None or settings.grpc.socket_path is not None)
        prepared.set()
        loader.wait_until_settled()
        with (
            followed(settings, loader.reconfigure),
            instruments.running(),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(
                _Listening(
                    settings,
                    DataPlane(catalogue, loader, instruments.recorder),
                    rest_socket,
                    grpc_port,
                    access,
                    instruments,
                ).serve(on_ready, leash, log)
            )
    finally:
        prepared.set()
        loader.stop()
        runtime.close()
        if rest_socket is not None:
            rest_socket.close()


class _Listening:
    """The time between opened and closed ports."""

    def __init__(
        self,
        settings: ServerSettings,
        plane: DataPlane,
        rest_socket: socket.socket | None,
        grpc_port: int | None,
        access: Access,
        instruments: Instruments,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._rest_socket = rest_socket
        self._grpc_port = grpc_port
        self._access = access
        self._instruments = instruments
        self._stop = asyncio.Event()

    async def serve(self, on_ready: Ready | None, leash: int | None, log: str | None) -> None:
        self._listen_for_the_end(leash)
        with ThreadPoolExecutor(self._settings.compute_threads, "compute") as pool:
            grpc_server = await self._start_grpc(pool)
            rest_server = await self._start_rest(pool)
            record = self._record(log)
            with _registered(self._settings.servers_folder, record):
                _LOG.info(
                    "serving %s at %s",
                    ", ".join(record.models) or "no models",
                    record.rest_url or record.grpc_address,
                )
                if on_ready is not None:
                    on_ready(record)
                await self._stop.wait()
                _LOG.info("stopping: requests under way have %g s", self._settings.drain_s)
            if rest_server is not None:
                rest_server.refuse()
            if grpc_server is not None:
                await grpc_server.stop(self._settings.drain_s)
            if rest_server is not None:
                await rest_server.stop()

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
        grpc = self._settings.grpc
        if self._grpc_port is None and grpc.socket_path is None:
            return None
        from timonel.serving.grpc.options import GrpcOptions  # noqa: PLC0415 - only with gRPC
        from timonel.serving.grpc.server import GrpcServer  # noqa: PLC0415 - only with gRPC

        port = self._grpc_port
        address = None if port is None else authority(self._settings.host, port)
        try:
            guard = self._access.grpc_guard()
            server = GrpcServer(
                self._plane,
                pool,
                GrpcOptions(
                    address=address,
                    socket_path=grpc.socket_path,
                    channel_arguments=(*guard.arguments, *grpc.channel_arguments),
                    health=grpc.health,
                    reflection=grpc.reflection,
                    tensor_content=grpc.tensor_content,
                    check_method_names=grpc.check_method_names,
                ),
                monitor=self._instruments.monitor,
                credentials=guard.credentials,
                interceptors=guard.interceptors,
            )
        except RuntimeError as error:
            place = " and ".join(filter(None, (address, grpc.socket_path)))
            raise ServingError(f"expected to listen on {place} for gRPC, got {error}") from error
        await server.start()
        return server

    async def _start_rest(self, pool: ThreadPoolExecutor) -> RestServer | None:
        if self._rest_socket is None:
            return None
        asked = self._settings.rest
        options = RestOptions(
            DIALECTS[self._settings.dialect],
            asked.cors,
            asked.timeout_s,
            asked.check_method_names,
        )
        monitor = self._instruments.monitor
        rest = RestApp(self._plane, pool, self._stop.is_set, options, monitor)
        app = self._access.guarded(self._instruments.app(rest, pool))
        server = RestServer(
            app, self._rest_socket, self._settings.drain_s, self._access.uvicorn_options()
        )
        await server.start()
        return server

    def _record(self, log: str | None) -> ServerRecord:
        rest, host = self._rest_socket, self._settings.host
        return ServerRecord(
            pid=os.getpid(),
            process_started=psutil.Process().create_time(),
            models=tuple(model.name for model in self._settings.models),
            rest_url=""
            if rest is None
            else f"{self._access.scheme}://{authority(*rest.getsockname()[:2])}",
            grpc_address=None if self._grpc_port is None else authority(host, self._grpc_port),
            started=time.time(),
            log=log,
        )


def _reserve_grpc(settings: ServerSettings) -> int | None:
    """Check that the gRPC port is free, long before gRPC binds it."""
    if settings.grpc_port is None:
        return None
    with bind(settings.host, settings.grpc_port, "gRPC") as reserved:
        port: int = reserved.getsockname()[1]
    return port


def _load_when(prepared: threading.Event, load: Load) -> Load:
    def waiting(path: Path) -> LoadedModel:
        prepared.wait()
        return load(path)

    return waiting


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

"""REST and gRPC frontends in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from timonel.errors import ServingError
from timonel.serving.auth.access import Access
from timonel.serving.console.page.app import with_page
from timonel.serving.futures import SizedPool
from timonel.serving.inference import DataPlane
from timonel.serving.ports import authority, bind
from timonel.serving.protocols.tfs_rest.app import RestApp
from timonel.serving.protocols.tfs_rest.connection import predict_protocol
from timonel.serving.protocols.tfs_rest.predict import RestBackend
from timonel.serving.protocols.v2.app import V2App
from timonel.serving.rest_server import RestServer
from timonel.serving.settings import ServerSettings
from timonel.serving.settings.dialect import DIALECTS
from timonel.serving.telemetry.telemetry import Telemetry


class Frontends:
    """REST and gRPC servers that drain on close. For one event loop.

    Args:
        settings: The server's settings.
        plane: Computes requests.
        rest_socket: The bound REST socket; None turns REST off.
        grpc_port: The gRPC port; None for no port.
        access: Authentication and limits that requests pass first.
        telemetry: Metrics and traces.
    """

    def __init__(
        self,
        settings: ServerSettings,
        plane: DataPlane,
        rest_socket: socket.socket | None,
        grpc_port: int | None,
        access: Access,
        telemetry: Telemetry,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._rest_socket = rest_socket
        self._grpc_port = grpc_port
        self._access = access
        self._telemetry = telemetry
        self._draining = asyncio.Event()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Answer requests during the block; at its end, drain in-flight ones.

        Raises:
            ServingError: The server cannot listen on a port.
        """
        with SizedPool(self._settings.compute_threads) as pool:
            grpc_server = await self._start_grpc(pool)
            rest_server = await self._start_rest(pool)
            yield
            self._draining.set()
            if rest_server is not None:
                rest_server.refuse()
            if grpc_server is not None:
                await grpc_server.stop(self._settings.drain_s)
            if rest_server is not None:
                await rest_server.stop()

    async def _start_grpc(self, pool: ThreadPoolExecutor) -> Any:
        grpc = self._settings.grpc
        if self._grpc_port is None and grpc.socket_path is None:
            return None
        from timonel.serving.protocols.tfs_grpc.server import GrpcServer  # noqa: PLC0415 - only with gRPC
        from timonel.serving.protocols.v2.service import InferenceService  # noqa: PLC0415 - only with gRPC

        monitor, port = self._telemetry.monitor, self._grpc_port
        v2 = InferenceService(self._plane, pool, self._draining.is_set, monitor)
        address = None if port is None else authority(self._settings.host, port)
        try:
            guard = self._access.grpc_guard()
            server = GrpcServer(
                self._plane,
                pool,
                grpc,
                address,
                guard,
                may_reload=self._access.takes_reloads,
                monitor=monitor,
                others=(v2.described(),),
            )
        except RuntimeError as error:
            if port is not None:
                # Another server may have taken the port while this one loaded its models.
                bind(self._settings.host, port, "gRPC").close()
            place = " and ".join(filter(None, (address, grpc.socket_path)))
            raise ServingError(
                f"gRPC cannot listen on {place}", hint="choose another port or socket"
            ) from error
        await server.start()
        return server

    async def _start_rest(self, pool: ThreadPoolExecutor) -> RestServer | None:
        if self._rest_socket is None:
            return None
        rest, monitor = self._settings.rest, self._telemetry.monitor
        dialect = DIALECTS[self._settings.dialect]
        backend = RestBackend(self._plane, pool, rest, dialect, monitor)
        is_draining = self._draining.is_set
        both = V2App(RestApp(backend, is_draining), backend, is_draining)
        described = with_page(
            both, self._settings, self._plane, monitor, pool, is_draining=is_draining
        )
        host = self._settings.rest_host or self._settings.host
        hosts = self._access.hosts(self._rest_socket.getsockname()[0], host)
        app = self._access.guarded(self._telemetry.app(described, pool), hosts, cors=rest.cors)
        http = self._access.uvicorn_options()
        if self._access.guards_nothing:
            http["http"] = predict_protocol(http["http"], backend, self._access.max_body, hosts)
        server = RestServer(app, self._rest_socket, self._settings.drain_s, http)
        await server.start()
        return server

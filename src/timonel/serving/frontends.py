"""REST and gRPC frontends in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from timonel.errors import ServingError
from timonel.serving.asgi import Router
from timonel.serving.auth.access import ServerAccess
from timonel.serving.auth.asgi import RestGuard
from timonel.serving.auth.origin_check import hosts_for
from timonel.serving.console.openapi import openapi_route
from timonel.serving.console.page.app import Page
from timonel.serving.futures import SizedPool
from timonel.serving.inference.flow import Flow
from timonel.serving.manager.catalogue import Catalogue
from timonel.serving.manager.manager import ModelManager
from timonel.serving.ports import bind, grpc_address
from timonel.serving.protocols.monitoring import monitoring_routes
from timonel.serving.protocols.tfs_rest.api import RestApi
from timonel.serving.protocols.tfs_rest.connection import predict_protocol
from timonel.serving.protocols.v2.api import InferenceApi
from timonel.serving.rest_server import RestServer
from timonel.serving.settings.server import ServerSettings
from timonel.serving.telemetry.monitor import Monitor
from timonel.serving.telemetry.prometheus import metrics_route
from timonel.serving.telemetry.request_log import RequestLog


@dataclass(eq=False)
class Frontends:
    """REST and gRPC servers that drain on close. For one event loop."""

    _settings: ServerSettings
    _catalogue: Catalogue
    _manager: ModelManager
    _rest_socket: socket.socket | None
    _grpc_port: int | None
    _access: ServerAccess
    _monitor: Monitor
    _recorder: RequestLog
    _draining: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Answer requests during the block; at its end, drain in-flight ones."""
        limits = self._settings.access.limits
        with SizedPool(self._settings.compute_threads) as pool:
            flow = Flow(
                self._catalogue,
                pool,
                self._monitor,
                self._recorder,
                limits.max_response,
                limits.max_receiving,
            )
            grpc_server = await self._start_grpc(flow)
            rest_server = await self._start_rest(flow)
            yield
            self._draining.set()
            if rest_server is not None:
                rest_server.refuse()
            if grpc_server is not None:
                await grpc_server.stop(self._settings.drain_s)
            if rest_server is not None:
                await rest_server.stop()

    async def _start_grpc(self, flow: Flow) -> Any:
        grpc = self._settings.grpc
        if self._grpc_port is None and grpc.socket_path is None:
            return None
        from timonel.serving.protocols.tfs_grpc.server import GrpcServer  # noqa: PLC0415 - only with gRPC
        from timonel.serving.protocols.tfs_grpc.services import ModelService  # noqa: PLC0415 - only with gRPC
        from timonel.serving.protocols.v2.service import inference_service  # noqa: PLC0415 - only with gRPC

        port = self._grpc_port
        address = None if port is None else grpc_address(self._settings.host, port)
        try:
            guard = self._access.grpc_guard()
            server = GrpcServer(
                flow,
                grpc,
                address,
                guard,
                models=ModelService(
                    flow,
                    self._manager if self._settings.access.takes_reloads else None,
                    self._monitor,
                    self._settings.trusted,
                ),
                others=(inference_service(flow, self._draining.is_set),),
            )
        except RuntimeError as error:
            if port:
                # Another server may have taken the port while this one loaded its models.
                bind(self._settings.host, port, "gRPC").close()
            place = " and ".join(filter(None, (address, grpc.socket_path)))
            raise ServingError(
                f"gRPC cannot listen on {place}", hint="choose another port or socket"
            ) from error
        await server.start()
        return server

    async def _start_rest(self, flow: Flow) -> RestServer | None:
        if self._rest_socket is None:
            return None
        settings, is_draining = self._settings, self._draining.is_set
        monitor, extensions = self._monitor, settings.rest.extensions
        answers = monitor.answers if extensions else None
        max_body = settings.access.limits.max_body
        api = RestApi(flow, settings.rest, max_body)
        routes = [
            *api.routes(),
            *InferenceApi(flow, settings.rest, is_draining, max_body).routes(),
            *monitoring_routes(flow.catalogue, is_draining, answers),
        ]
        if (path := settings.monitoring.metrics_path) is not None:
            routes.append(metrics_route(monitor.page, path, flow.pool))
        if extensions:
            routes.append(openapi_route())
        if settings.rest.page:
            routes += Page(flow.catalogue, monitor, is_draining).routes()
        host = settings.rest_host or settings.host
        address, control = self._rest_socket.getsockname()[0], self._access.control
        hosts = hosts_for(address, host, settings.access.allowed_hosts)
        app = Router(routes, RestGuard(control, hosts, cors=settings.rest.cors))
        http = self._access.uvicorn_options()
        if control.guards_nothing:
            http["http"] = predict_protocol(http["http"], api, hosts)
        server = RestServer(app, self._rest_socket, self._settings.drain_s, http)
        await server.start()
        return server

"""gRPC server with TensorFlow Serving's and further services."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection

from timonel.serving.inference import DataPlane
from timonel.serving.protocols.tfs_grpc import model, prediction
from timonel.serving.protocols.tfs_grpc.model import ModelService
from timonel.serving.protocols.tfs_grpc.options import GrpcOptions
from timonel.serving.protocols.tfs_grpc.pools import DescriptorPools
from timonel.serving.protocols.tfs_grpc.prediction import PredictionService
from timonel.serving.protocols.tfs_grpc.standard_services import add_health, add_reflection
from timonel.serving.telemetry.monitor import Monitor

_HEALTH_NAMES = ("", "ModelService", "PredictionService")
_SERVING = health_pb2.HealthCheckResponse.SERVING


@dataclass(frozen=True)
class Service:
    """A service besides TensorFlow Serving's.

    Args:
        name: The full name.
        handlers: The methods, as gRPC's generic handlers.
        pool: Descriptor pool with the service's protos, for reflection.
    """

    name: str
    handlers: Any
    pool: Any


class GrpcServer:
    """gRPC server, created, started and stopped in one event loop.

    Args:
        plane: Data plane that runs the models.
        pool: Executor for decoding and encoding large messages.
        options: Addresses and features.
        monitor: Records each request.
        credentials: TLS credentials; None for plain text.
        interceptors: Server interceptors, in order.
        others: Further services.

    Raises:
        RuntimeError: An address cannot be bound.
    """

    def __init__(
        self,
        plane: DataPlane,
        pool: Executor,
        options: GrpcOptions,
        *,
        monitor: Monitor | None = None,
        credentials: Any = None,
        interceptors: Sequence[Any] = (),
        others: Sequence[Service] = (),
    ) -> None:
        self._options = options
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_worth_a_line)
        self._server: Any = grpc.aio.server(
            interceptors=list(interceptors), options=options.arguments()
        )
        self._health = health.aio.HealthServicer() if options.health else None
        self._server.add_generic_rpc_handlers(
            (
                PredictionService(plane, pool, options, monitor).handlers(),
                ModelService(plane, pool, monitor, may_reload=options.reload).handlers(),
                *(other.handlers for other in others),
            )
        )
        names = [prediction.NAME, model.NAME, *(other.name for other in others)]
        self._healthy = (*_HEALTH_NAMES, *(other.name for other in others))
        if self._health is not None:
            add_health(self._health, self._server)
            names.append(health.SERVICE_NAME)
        if options.reflection:
            pools = DescriptorPools(descriptor_pool.Default(), *(other.pool for other in others))
            names.append(reflection.SERVICE_NAME)
            add_reflection(names, pools, self._server)
        self.port = self._listen(credentials)

    def _listen(self, credentials: Any) -> int | None:
        """Bind the addresses; return the TCP port, if any."""
        port = None
        if self._options.address is not None:
            port = self._bind(self._options.address, credentials)
        if self._options.socket_path is not None:
            self._bind(f"unix:{self._options.socket_path}", credentials)
        return port

    def _bind(self, address: str, credentials: Any) -> int:
        if credentials is None:
            port: int = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, credentials)
        return port

    async def start(self) -> None:
        """Start answering."""
        if self._health is not None:
            for name in self._healthy:
                await self._health.set(name, _SERVING)
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Reject new calls and wait up to ``grace_s`` seconds for running ones."""
        if self._health is not None:
            await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Drop gRPC's traceback of a response whose client has disconnected."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != "ExecuteBatchError"

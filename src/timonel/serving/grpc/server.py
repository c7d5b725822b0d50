"""The gRPC server: its port, its limits and its health service."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

from timonel.serving.core import DataPlane
from timonel.serving.grpc.services import ModelService, PredictionService

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Without this, a second server on the same port would start and take half of the calls.
    ("grpc.so_reuseport", 0),
)
_HEALTH_NAMES = ("", "ModelService", "PredictionService")


class GrpcServer:
    """A gRPC server that is made, started and stopped inside one event loop.

    Args:
        plane: Where requests are computed.
        pool: Where they are decoded and computed.
        address: Host and port to listen on.

    Raises:
        RuntimeError: The address cannot be listened on.
    """

    def __init__(self, plane: DataPlane, pool: Executor, address: str) -> None:
        self._server: Any = grpc.aio.server(options=_OPTIONS)
        self._health = health.aio.HealthServicer()
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            PredictionService(plane, pool), self._server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(
            ModelService(plane, pool), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port: int = self._server.add_insecure_port(address)

    async def start(self) -> None:
        """Begin to answer."""
        for name in _HEALTH_NAMES:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, and wait for those under way, at most ``grace_s`` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

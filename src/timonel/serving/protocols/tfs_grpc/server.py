"""gRPC server with TensorFlow Serving's and further services."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from timonel.serving.auth.access import GrpcGuard
from timonel.serving.futures import AT_ONCE_BYTES
from timonel.serving.grpc_requests import malformed, refuse
from timonel.serving.inference.flow import Flow
from timonel.serving.protocols.tfs_grpc.services import (
    MODEL_SERVICE,
    PREDICTION_SERVICE,
    ModelService,
    prediction_service,
)
from timonel.serving.settings.server import GrpcSettings
from timonel.serving.status import StatusError

# 2 GiB, the limit of protobuf. gRPC treats -1 as unlimited, but not this number.
_MAX_MESSAGE = 2**31 - 1
_CHANNEL_ARGUMENTS: Mapping[str, int | str] = {
    "grpc.max_receive_message_length": _MAX_MESSAGE,
    "grpc.max_send_message_length": _MAX_MESSAGE,
    # Without this, a second server on the same port would start and take half the calls.
    "grpc.so_reuseport": 0,
}
_HEALTH_NAMES = ("", "ModelService", "PredictionService")


@dataclass(frozen=True)
class Service:
    """A service besides TensorFlow Serving's."""

    name: str
    handlers: Any
    pool: Any


class GrpcServer:
    """gRPC server, created, started and stopped in one event loop."""

    def __init__(
        self,
        flow: Flow,
        settings: GrpcSettings,
        address: str | None = None,
        guard: GrpcGuard | None = None,
        *,
        models: ModelService | None = None,
        others: Sequence[Service] = (),
    ) -> None:
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_relevant)
        guard = guard or GrpcGuard()
        arguments = dict(_CHANNEL_ARGUMENTS)
        arguments.update(guard.arguments)
        arguments.update(settings.channel_arguments)
        self._server: Any = grpc.aio.server(
            interceptors=list(guard.interceptors), options=list(arguments.items())
        )
        self._server.add_generic_rpc_handlers(
            (
                prediction_service(flow, settings),
                (models or ModelService(flow)).handlers(),
                *(other.handlers for other in others),
            )
        )
        names = [PREDICTION_SERVICE, MODEL_SERVICE]
        self._healthy = (*_HEALTH_NAMES, *(other.name for other in others))
        self._health = health.aio.HealthServicer() if settings.health else None
        if self._health is not None:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, _Registrar(self._server))
            names.append(health.SERVICE_NAME)
        if settings.reflection:
            self._add_reflection([*names, reflection.SERVICE_NAME], others)
        self.port: int | None = None
        """The TCP port, if any."""
        if address is not None:
            self.port = self._bind(address, guard.credentials)
        if settings.socket_path is not None:
            self._bind(f"unix:{settings.socket_path}", guard.credentials)

    def _add_reflection(self, names: Sequence[str], others: Sequence[Service]) -> None:
        protos = descriptor_pool.DescriptorPool()
        for name in names:
            _copy_file(descriptor_pool.Default().FindFileContainingSymbol(name), protos)
        for other in others:
            _copy_file(other.pool.FindFileContainingSymbol(other.name), protos)
        described = [*names, *(other.name for other in others)]
        servicer = reflection.aio.ReflectionServicer(described, pool=protos)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            servicer, _Registrar(self._server)
        )

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
                await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Reject new calls and wait up to ``grace_s`` seconds for running ones."""
        if self._health is not None:
            await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Drop gRPC's traceback of a response whose client has disconnected."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != "ExecuteBatchError"


def _copy_file(file: Any, pool: Any) -> None:
    """Copy a proto file and its imports to another descriptor pool; repeats are ignored."""
    for imported in file.dependencies:
        _copy_file(imported, pool)
    pool.AddSerializedFile(file.serialized_pb)


class _Registrar:
    """Stand-in for a server in the generated registration functions of grpc.aio.

    If a deserializer raises, gRPC logs a traceback for each request and sends the exception's class
    name to the client. Here it does not raise, and the call ends with a status.
    """

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Ignore handlers that `add_registered_method_handlers` registers."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        guarded = {name: _guarded(handler) for name, handler in handlers.items()}
        generic = grpc.method_handlers_generic_handler(service, guarded)
        self._server.add_generic_rpc_handlers((generic,))


def _guarded(handler: Any) -> Any:
    def message_of(raw: bytes) -> Any:
        if len(raw) > AT_ONCE_BYTES:  # no name of a service or symbol is that long
            raise malformed()
        try:
            return handler.request_deserializer(raw)
        except DecodeError:
            raise malformed() from None

    kinds = ("unary_unary", "unary_stream", "stream_stream")
    kind = next(kind for kind in kinds if getattr(handler, kind) is not None)
    behaviour = getattr(handler, kind)

    async def call(raw: bytes, context: Any) -> Any:
        try:
            return await behaviour(message_of(raw), context)
        except StatusError as error:
            await refuse(context, error)

    async def stream(raws: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        try:
            async for answer in behaviour((message_of(raw) async for raw in raws), context):
                yield answer
        except StatusError as error:
            await refuse(context, error)

    guarded = {kind: stream if kind == "stream_stream" else call}
    return handler._replace(request_deserializer=None, **guarded)

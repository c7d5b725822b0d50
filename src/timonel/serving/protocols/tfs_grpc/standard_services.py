"""Register health checking and reflection; answer malformed requests with a status.

If a deserializer raises, gRPC logs a traceback for each request and sends the exception's class
name to the client. Here it does not raise, and the call ends with a status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from timonel.serving.futures import AT_ONCE_BYTES
from timonel.serving.grpc_requests import malformed
from timonel.serving.grpc_status import refuse
from timonel.serving.status import StatusError


def add_health(servicer: Any, server: Any) -> None:
    """Add ``grpc.health.v1.Health`` to a server of grpc.aio."""
    health_pb2_grpc.add_HealthServicer_to_server(servicer, _Registrar(server))


def add_reflection(services: list[str], pool: Any, server: Any) -> None:
    """Add ``grpc.reflection.v1alpha.ServerReflection`` to a server of grpc.aio.

    Args:
        services: Full names of the services to describe.
        pool: The descriptor pool with their protos.
        server: The server.
    """
    servicer = reflection.aio.ReflectionServicer(services, pool=pool)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, _Registrar(server))


class _Registrar:
    """Stand-in for a server in the generated registration functions."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Ignore handlers that `add_registered_method_handlers` registers."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        guarded = {name: _guarded(handler) for name, handler in handlers.items()}
        generic = grpc.method_handlers_generic_handler(service, guarded)
        self._server.add_generic_rpc_handlers((generic,))


def _guarded(handler: Any) -> Any:
    coders = {
        "request_deserializer": _quiet(handler.request_deserializer),
        "response_serializer": handler.response_serializer,
    }
    if handler.unary_unary is not None:
        call = _checked_call(handler.unary_unary)
        return grpc.unary_unary_rpc_method_handler(call, **coders)
    if handler.unary_stream is not None:
        call = _checked_call(handler.unary_stream)
        return grpc.unary_stream_rpc_method_handler(call, **coders)
    stream = _checked_stream(handler.stream_stream)
    return grpc.stream_stream_rpc_method_handler(stream, **coders)


def _quiet(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def quiet(raw: bytes) -> Any:
        if len(raw) > AT_ONCE_BYTES:  # no name of a service or symbol is that long
            return malformed()
        try:
            return deserialize(raw)
        except DecodeError:
            return malformed()

    return quiet


def _checked_call(behaviour: Any) -> Any:
    async def call(request: Any, context: Any) -> Any:
        if isinstance(request, StatusError):
            refuse(context, request.code, request.message)
            return None
        return await behaviour(request, context)

    return call


def _checked_stream(behaviour: Any) -> Any:
    async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async def checked() -> AsyncIterator[Any]:
            async for request in requests:
                if isinstance(request, StatusError):
                    refuse(context, request.code, request.message)
                    return
                yield request

        async for answer in behaviour(checked(), context):
            yield answer

    return stream

"""GRPCInferenceService: the Open Inference Protocol over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import grpc

from timonel.serving.futures import by_size
from timonel.serving.inference import DataPlane, RequestContext
from timonel.serving.protocols.tfs_grpc.calls import Answer, handler
from timonel.serving.protocols.tfs_grpc.server import Service
from timonel.serving.protocols.v2 import rpc_codec
from timonel.serving.protocols.v2.inference import (
    in_time,
    is_ready,
    model_view,
    outputs_in_time,
    server_view,
    start,
)
from timonel.serving.protocols.v2.messages import METHODS, POOL, SERVICE, message_class
from timonel.serving.protocols.v2.request import InferResult, spec_of
from timonel.serving.signature import bytes_of
from timonel.serving.telemetry.monitor import Monitor

_PROBES = frozenset({"ServerLive", "ServerReady"})


class InferenceService:
    """The methods of GRPCInferenceService; all raise `StatusError`.

    Args:
        plane: Data plane that runs the models.
        pool: Executor for decoding large requests and encoding large responses.
        is_draining: Whether the server is stopping.
        monitor: Records each request.
    """

    def __init__(
        self,
        plane: DataPlane,
        pool: Executor,
        is_draining: Callable[[], bool] = lambda: False,
        monitor: Monitor | None = None,
    ) -> None:
        self._plane = plane
        self._pool = pool
        self._is_draining = is_draining
        self._monitor = monitor

    def described(self) -> Service:
        """Return the service for a `GrpcServer`."""
        answers: dict[str, Answer] = {
            "ServerLive": self.live,
            "ServerReady": self.ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.infer,
        }
        handlers = {
            name: handler(
                answer,
                name,
                message_class(METHODS[name][0]),
                self._pool,
                # Probes are so frequent that they would dominate the monitored requests.
                None if name in _PROBES else self._monitor,
            )
            for name, answer in answers.items()
        }
        return Service(SERVICE, grpc.method_handlers_generic_handler(SERVICE, handlers), POOL)

    async def live(self, request: Any, context: RequestContext) -> bytes:  # noqa: ARG002
        """Answer the liveness probe."""
        return _message("ServerLiveResponse", live=True)

    async def ready(self, request: Any, context: RequestContext) -> bytes:  # noqa: ARG002
        """Answer the readiness probe: whether all models can answer."""
        all_ready = not (self._plane.unready() or self._is_draining())
        return _message("ServerReadyResponse", ready=all_ready)

    async def model_ready(self, request: Any, context: RequestContext) -> bytes:  # noqa: ARG002
        """Return whether a version can answer."""
        spec = spec_of(request.name, request.version)
        return _message("ModelReadyResponse", ready=is_ready(self._plane, spec))

    async def server_metadata(
        self,
        request: Any,  # noqa: ARG002 - a method
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Return the metadata of the server."""
        return _message("ServerMetadataResponse", **server_view())

    async def model_metadata(
        self,
        request: Any,
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Return the metadata of a version."""
        spec = spec_of(request.name, request.version)
        return _message("ModelMetadataResponse", **model_view(self._plane, spec))

    async def infer(self, request: Any, context: RequestContext) -> bytes:
        """Run a signature."""
        decoded = await by_size(self._pool, request.ByteSize(), rpc_codec.decode, request)
        context = in_time(context, decoded)
        with self._plane.call(spec_of(request.model_name, request.model_version), context) as call:
            outputs = await outputs_in_time(start(call, decoded), context)
            result = InferResult(call.name, call.version, outputs)
        size = sum(map(bytes_of, outputs.values()))
        return await by_size(self._pool, size, rpc_codec.encode, decoded, result)


def _message(name: str, /, **fields: Any) -> bytes:
    encoded: bytes = message_class(name)(**fields).SerializeToString()
    return encoded

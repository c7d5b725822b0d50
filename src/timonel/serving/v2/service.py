"""GRPCInferenceService: the Open Inference Protocol over gRPC, with Triton's streams and index."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import Any

import grpc

from timonel.serving.awaiting import by_size
from timonel.serving.core import DataPlane, RequestContext
from timonel.serving.grpc.calls import Answer, accounted, handler
from timonel.serving.grpc.server import Service
from timonel.serving.grpc_requests import deserializer, parsed
from timonel.serving.monitoring.monitor import Monitor
from timonel.serving.runtimes.base import bytes_of
from timonel.serving.status import StatusError
from timonel.serving.v2 import rpc_codec, views
from timonel.serving.v2.inference import in_time, outputs_in_time, result_of, start
from timonel.serving.v2.messages import METHODS, POOL, SERVICE, message_class
from timonel.serving.v2.request import spec_of

_STREAM = "ModelStreamInfer"
_PROBES = frozenset({"ServerLive", "ServerReady"})


class InferenceService:
    """The methods; all of them raise `StatusError`.

    Args:
        plane: Where requests are computed.
        pool: Where large requests and answers are read and written.
        is_draining: Whether the server has been asked to stop.
        monitor: What is told of each request.
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
        """Return the service as a server takes it."""
        answers: dict[str, Answer] = {
            "ServerLive": self.live,
            "ServerReady": self.ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.infer,
            "RepositoryIndex": self.index,
        }
        handlers = {
            name: handler(
                answer,
                name,
                message_class(METHODS[name][0]),
                self._pool,
                # Probes ask all the time, and would be all that there is to see.
                None if name in _PROBES else self._monitor,
            )
            for name, answer in answers.items()
        }
        handlers[_STREAM] = grpc.stream_stream_rpc_method_handler(
            self.stream,
            request_deserializer=deserializer(message_class(METHODS[_STREAM][0]), self._pool),
            response_serializer=None,
        )
        return Service(SERVICE, grpc.method_handlers_generic_handler(SERVICE, handlers), POOL)

    async def live(self, request: Any, context: RequestContext) -> bytes:  # noqa: ARG002
        """Tell that the server lives."""
        return _message("ServerLiveResponse", live=True)

    async def ready(self, request: Any, context: RequestContext) -> bytes:  # noqa: ARG002
        """Tell whether all models can answer."""
        is_ready = not (self._plane.unready() or self._is_draining())
        return _message("ServerReadyResponse", ready=is_ready)

    async def model_ready(self, request: Any, context: RequestContext) -> bytes:  # noqa: ARG002
        """Tell whether a version can answer."""
        spec = spec_of(request.name, request.version)
        return _message("ModelReadyResponse", ready=views.is_ready(self._plane, spec))

    async def server_metadata(
        self,
        request: Any,  # noqa: ARG002 - a method
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Tell what the server is."""
        return _message("ServerMetadataResponse", **views.server_view())

    async def model_metadata(
        self,
        request: Any,
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Tell what a version takes and gives."""
        spec = spec_of(request.name, request.version)
        return _message("ModelMetadataResponse", **views.model_view(self._plane, spec))

    async def index(self, request: Any, context: RequestContext) -> bytes:  # noqa: ARG002
        """Tell the state of every version."""
        index = views.index_view(self._plane, only_ready=request.ready)
        return _message("RepositoryIndexResponse", models=index)

    async def infer(self, request: Any, context: RequestContext) -> bytes:
        """Run a signature."""
        asked = await by_size(self._pool, request.ByteSize(), rpc_codec.decode, request)
        context = in_time(context, asked)
        with self._plane.call(spec_of(request.model_name, request.model_version), context) as call:
            outputs = await outputs_in_time(start(call, asked), context)
            result = result_of(call, outputs)
        size = sum(map(bytes_of, outputs.values()))
        return await by_size(self._pool, size, rpc_codec.encode, asked, result)

    async def stream(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        """Run a signature for each request of a stream, one after the other.

        A request that fails ends neither the stream nor the others.
        """
        async for sent in requests:
            request = await parsed(sent)
            try:
                response = await accounted(self.infer, _STREAM, request, context, self._monitor)
            except StatusError as error:
                yield rpc_codec.encode_failure(getattr(request, "id", ""), error.message)
            else:
                yield rpc_codec.encode_streamed(response)


def _message(name: str, /, **fields: Any) -> bytes:
    encoded: bytes = message_class(name)(**fields).SerializeToString()
    return encoded

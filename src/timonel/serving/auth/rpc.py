"""gRPC server interceptor for access control."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Self

import grpc

from timonel.serving.auth.control import AccessControl, TooManyError, credentials
from timonel.serving.auth.policy import Principal, Resource, Scope, denied
from timonel.serving.auth.tls import peer_names
from timonel.serving.grpc_requests import Unparsed, parsed, refuse
from timonel.serving.settings.auth import Action
from timonel.serving.status import Code, StatusError

_SERVING = "/tensorflow.serving"
_V2 = "/inference.GRPCInferenceService"
EVERYTHING_ELSE = Resource(Scope.SERVER, Action.ADMIN)

Reader = Callable[[Any], Resource]


def _fixed(resource: Resource) -> Reader:
    return lambda _: resource


def _by_spec(action: Action) -> Reader:
    return lambda request: Resource(Scope.MODELS, action, (request.model_spec.name,))


def _by_field(action: Action, field: str) -> Reader:
    return lambda request: Resource(Scope.MODELS, action, (getattr(request, field),))


def _by_tasks(request: Any) -> Resource:
    return Resource(
        Scope.MODELS, Action.PREDICT, tuple({task.model_spec.name for task in request.tasks})
    )


METHODS: Mapping[str, Reader] = {
    "/grpc.health.v1.Health/Check": _fixed(Resource(Scope.OPEN)),
    "/grpc.health.v1.Health/Watch": _fixed(Resource(Scope.OPEN)),
    "/grpc.health.v1.Health/List": _fixed(Resource(Scope.OPEN)),
    f"{_SERVING}.PredictionService/Predict": _by_spec(Action.PREDICT),
    f"{_SERVING}.PredictionService/Classify": _by_spec(Action.PREDICT),
    f"{_SERVING}.PredictionService/Regress": _by_spec(Action.PREDICT),
    f"{_SERVING}.PredictionService/MultiInference": _by_tasks,
    f"{_SERVING}.PredictionService/GetModelMetadata": _by_spec(Action.METADATA),
    f"{_SERVING}.ModelService/GetModelStatus": _by_spec(Action.STATUS),
    f"{_V2}/ServerLive": _fixed(Resource(Scope.OPEN)),
    f"{_V2}/ServerReady": _fixed(Resource(Scope.OPEN)),
    f"{_V2}/ServerMetadata": _fixed(Resource(Scope.KNOWN)),
    f"{_V2}/ModelReady": _by_field(Action.STATUS, "name"),
    f"{_V2}/ModelMetadata": _by_field(Action.METADATA, "name"),
    f"{_V2}/ModelInfer": _by_field(Action.PREDICT, "model_name"),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _fixed(Resource(Scope.KNOWN)),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _fixed(Resource(Scope.KNOWN)),
}
"""Resource by method. Other methods need every permission."""


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # untyped
    """Reject unauthorized calls.

    Args:
        control: The access rules, shared with REST.
    """

    def __init__(self, control: AccessControl) -> None:
        self._control = control

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Return the method's handler, wrapped in access control."""
        handler = await continuation(details)
        if handler is None:
            # Unauthorized clients do not learn which methods exist.
            return grpc.unary_unary_rpc_method_handler(self._guarded_unary(_unimplemented, _ELSE))
        reader = METHODS.get(details.method, _ELSE)
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            guarded = self._guarded_unary(handler.unary_unary, reader)
            return grpc.unary_unary_rpc_method_handler(guarded, **coders)
        if handler.unary_stream is not None:
            # Only Health's Watch gets here: a coroutine that writes its responses to the context.
            watch = self._guarded_unary(handler.unary_stream, reader)
            return grpc.unary_stream_rpc_method_handler(watch, **coders)
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                self._guarded_stream(handler.stream_stream, reader), **coders
            )
        raise AssertionError("no service here takes a stream and gives one answer")

    def _is_open(self, reader: Reader, request: Any) -> bool:
        return not isinstance(request, Unparsed) and self._control.is_open(
            _resource(reader, request)
        )

    def _guarded_unary(self, behaviour: Any, reader: Reader) -> Any:
        async def call(request: Any, context: Any) -> Any:
            if self._is_open(reader, request):
                return await behaviour(request, context)
            try:
                async with _Admission(self._control, context) as admission:
                    await admission.identify()
                    # Parse only now, so that unauthorized clients cannot cause expensive parsing.
                    request = await parsed(request)
                    admission.authorize(_resource(reader, request))
                    return await behaviour(request, context)
            except StatusError as error:
                _refuse(context, error)
                return None

        return call

    def _guarded_stream(self, behaviour: Any, reader: Reader) -> Any:
        async def call(requests: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async with _Admission(self._control, context) as admission:
                    await admission.identify()
                    async for answer in behaviour(_checked(requests, reader, admission), context):
                        yield answer
            except StatusError as error:
                _refuse(context, error)

        return call


class _Admission:
    """Request slot, authentication and authorization of one call."""

    def __init__(self, control: AccessControl, context: Any) -> None:
        self._control = control
        self._context = context
        self._principal: Principal | None = None

    async def __aenter__(self) -> Self:
        self._control.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._control.leave()

    async def identify(self) -> None:
        shown = credentials(
            self._context.invocation_metadata() or (), peer_names(self._context.auth_context())
        )
        self._principal = await self._control.identify(shown, _address(self._context.peer()))

    def authorize(self, resource: Resource) -> None:
        if self._principal is None:
            raise denied()
        self._control.authorize(self._principal, resource)


async def _checked(
    requests: AsyncIterator[Any], reader: Reader, admission: _Admission
) -> AsyncIterator[Any]:
    async for sent in requests:
        request = await parsed(sent)
        admission.authorize(_resource(reader, request))
        yield request


def _resource(reader: Reader, request: Any) -> Resource:
    """Return the resource to authorize; a malformed request needs every permission."""
    return EVERYTHING_ELSE if isinstance(request, StatusError) else reader(request)


def _refuse(context: Any, error: StatusError) -> None:
    metadata: tuple[tuple[str, str], ...] = ()
    if isinstance(error, TooManyError):
        # The first follows REST; gRPC's own retries use the second.
        metadata = (
            ("retry-after", str(math.ceil(error.retry_s))),
            ("grpc-retry-pushback-ms", str(math.ceil(error.retry_s * 1000))),
        )
    refuse(context, error.code, error.message, metadata)


async def _unimplemented(request: Any, context: Any) -> None:  # noqa: ARG001 - a gRPC handler
    raise StatusError(Code.UNIMPLEMENTED, "Method not found!")


def _address(peer: str) -> str:
    """Return the host of a peer such as ``ipv4:127.0.0.1:1234``."""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0] if kind in {"ipv4", "ipv6"} else peer


_ELSE = _fixed(EVERYTHING_ELSE)

"""gRPC handlers: deadlines, statuses and headers of calls."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from timonel.serving.grpc_requests import deserializer, parsed, refuse_error
from timonel.serving.inference import Codec, Flow
from timonel.serving.inference.context import Correlation
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.settings.server import COMPARISON_HEADER
from timonel.serving.status import StatusError, invalid_argument

# For a call without a deadline gRPC reports either None or centuries.
_FOREVER_S: Final = 1e9
_RELATED: Final = ("traceparent", "tracestate", COMPARISON_HEADER)
"""Fields of a `Correlation`."""
_RELATED_NAMES: Final = frozenset(_RELATED)


def computing(flow: Flow, api: str, request_type: Any, codec: Callable[[Any], Codec[bytes]]) -> Any:
    """Create the gRPC handler of a unary method that runs a model.

    The codec returns the serialized response: writing large tensors directly is faster than filling
    a message first.
    """

    async def answer(request: Any, context: Any) -> bytes:
        return await flow.run(codec(request), _timeout_s(context), _correlation(context))

    return _handler(flow, api, request_type, answer)


def reading(
    flow: Flow,
    api: str,
    request_type: Any,
    read: Callable[[Any], bytes | Awaitable[bytes]],
    *,
    is_observed: bool = True,
) -> Any:
    """Create the gRPC handler of a unary method that runs no model."""

    async def answer(request: Any, context: Any) -> bytes:
        name = getattr(request, "name", "") or _name_in(request)
        recorded = flow.observed("GRPC", api, name, _correlation(context))
        with recorded if is_observed else contextlib.nullcontext():
            found = read(request)
            return await found if inspect.isawaitable(found) else found

    return _handler(flow, api, request_type, answer)


def _handler(
    flow: Flow, api: str, request_type: Any, answer: Callable[[Any, Any], Awaitable[bytes]]
) -> Any:
    async def call(request: Any, context: Any) -> bytes:
        try:
            request = await parsed(request)
            if isinstance(request, StatusError):
                with flow.observed("GRPC", api, correlation=_correlation(context)):
                    raise StatusError(request.code, request.message)  # noqa: TRY301 - recorded
            return await answer(request, context)
        except StatusError as error:
            await refuse_error(context, error)
            return b""

    return grpc.unary_unary_rpc_method_handler(
        call, request_deserializer=deserializer(request_type, flow.pool), response_serializer=None
    )


def model_spec(request: Any) -> ModelSpec:
    """Return the version named in a request's ``model_spec``."""
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    return spec_from(request.model_spec)


def spec_from(proto: Any) -> ModelSpec:
    """Return the version named in a ModelSpec message."""
    if not proto.name:
        raise invalid_argument("ModelSpec has no name specified.")
    choice = proto.WhichOneof("version_choice")
    return ModelSpec(
        proto.name,
        proto.version.value if choice == "version" else None,
        proto.version_label if choice == "version_label" else None,
    )


def _name_in(request: Any) -> str:
    name: str = request.model_spec.name if hasattr(request, "model_spec") else ""
    return name


def _timeout_s(context: Any) -> float | None:
    remaining: float | None = context.time_remaining()
    return None if remaining is None or remaining > _FOREVER_S else remaining


def _correlation(context: Any) -> Correlation | None:
    metadata = context.invocation_metadata() or ()
    sent = {key: value for key, value in metadata if key in _RELATED_NAMES}
    return Correlation(*map(sent.get, _RELATED)) if sent else None

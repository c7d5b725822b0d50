"""Deadlines, statuses and monitoring of gRPC calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

import grpc

from timonel.serving.auth.policy import PRINCIPAL
from timonel.serving.grpc_requests import deserializer, parsed, refuse
from timonel.serving.inference import RequestContext
from timonel.serving.inference.context import Correlation, Observation
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.settings.server import COMPARISON_HEADER
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.telemetry.monitor import Monitor

_LOG = logging.getLogger(__name__)
_MESSAGE_LIMIT = 1024
_SUFFIX = "...TRUNCATED"
# For a call without a deadline gRPC reports either None or centuries.
_FOREVER_S = 1e9
_RELATED = ("traceparent", "tracestate", COMPARISON_HEADER)
"""Fields of a `Correlation`."""
_RELATED_NAMES = frozenset(_RELATED)


Method = Callable[[Any, RequestContext], Awaitable[bytes]]
"""Async function from a request and its context to a serialized response.

Raises `StatusError`. It is cancelled when the client disconnects and must not block the event loop.
"""


def handler(
    answer: Method, api: str, request_type: Any, pool: Executor, monitor: Monitor | None = None
) -> Any:
    """Create the gRPC handler of a unary method.

    ``answer`` returns the serialized response: writing large tensors directly is faster than
    filling a message first.

    Args:
        answer: The implementation.
        api: The method's name.
        request_type: The request's message class.
        pool: Executor for parsing large requests.
        monitor: Records each request.
    """

    async def call(request: Any, context: Any) -> bytes:
        try:
            return await _accounted(answer, api, request, context, monitor)
        except StatusError as error:
            refuse(context, error.code, cut(error.message))
            return b""

    return grpc.unary_unary_rpc_method_handler(
        call, request_deserializer=deserializer(request_type, pool), response_serializer=None
    )


def model_spec(request: Any) -> ModelSpec:
    """Return the version named in a request's ``model_spec``.

    Raises:
        StatusError: The request has no ``model_spec``, or it has no name.
    """
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    return spec_from(request.model_spec)


def spec_from(proto: Any) -> ModelSpec:
    """Return the version named in a ModelSpec message.

    Raises:
        StatusError: The ModelSpec has no name.
    """
    if not proto.name:
        raise invalid_argument("ModelSpec has no name specified.")
    choice = proto.WhichOneof("version_choice")
    return ModelSpec(
        proto.name,
        proto.version.value if choice == "version" else None,
        proto.version_label if choice == "version_label" else None,
    )


def cut(message: str) -> str:
    """Truncate an error message to `_MESSAGE_LIMIT` bytes, as header size is limited."""
    encoded = message.encode(errors="replace")
    if len(encoded) <= _MESSAGE_LIMIT:
        return message
    return encoded[:_MESSAGE_LIMIT].decode(errors="ignore") + _SUFFIX


async def _accounted(
    answer: Method, api: str, request: Any, context: Any, monitor: Monitor | None
) -> bytes:
    """Answer a request and record it in the monitor."""
    request = await parsed(request)
    observation = _observed(monitor, api, request, context)
    about = RequestContext(
        deadline=_deadline(context),
        principal=PRINCIPAL.get(),
        entrypoint="GRPC",
        api=api,
        observation=observation,
    )
    code = Code.CANCELLED
    try:
        _check(request, about)
        response = await answer(request, about)
        code = Code.OK
    except StatusError as error:
        code = error.code
        raise
    except Exception as error:
        # An error fails one request, not the server.
        _LOG.exception("%s failed", api)
        code = Code.INTERNAL
        raise StatusError(code, f"{type(error).__name__}: {error}") from error
    finally:
        if monitor is not None and observation is not None:
            monitor.end(observation, code)
    return response


def _deadline(context: Any) -> float | None:
    remaining = context.time_remaining()
    if remaining is None or remaining > _FOREVER_S:
        return None
    return time.monotonic() + float(remaining)


def _check(request: Any, about: RequestContext) -> None:
    if isinstance(request, StatusError):
        raise StatusError(request.code, request.message)
    # The deadline may have passed while the request was queued.
    if about.deadline is not None and time.monotonic() >= about.deadline:
        raise StatusError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")


def _observed(monitor: Monitor | None, api: str, request: Any, context: Any) -> Observation | None:
    if monitor is None:
        return None
    tasks = getattr(request, "tasks", None)
    asked = tasks[0] if tasks else request
    return monitor.begin("GRPC", api, _model_name(asked), _correlation(context))


def _model_name(asked: Any) -> str:
    if hasattr(asked, "model_spec"):
        name: str = asked.model_spec.name
    else:  # the Open Inference Protocol
        name = getattr(asked, "model_name", "") or getattr(asked, "name", "")
    return name


def _correlation(context: Any) -> Correlation | None:
    metadata = context.invocation_metadata() or ()
    sent = {key: value for key, value in metadata if key in _RELATED_NAMES}
    return Correlation(*map(sent.get, _RELATED)) if sent else None

"""What all calls have in common: off the event loop and back, deadlines, and statuses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from timonel.serving.access.policy import PRINCIPAL
from timonel.serving.core import RequestContext
from timonel.serving.messages import model_pb2
from timonel.serving.monitoring.monitor import Monitor
from timonel.serving.monitoring.observation import Observation, TraceParent
from timonel.serving.servables import ModelSpec
from timonel.serving.status import Code, StatusError, invalid_argument

_LOG = logging.getLogger(__name__)
_MESSAGE_LIMIT = 1024
_SUFFIX = "...TRUNCATED"
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# What gRPC tells of a call without a deadline, where it does not tell none, is centuries.
_FOREVER_S = 1e9
_TRACE = frozenset({"traceparent", "tracestate"})


@dataclass(frozen=True)
class Later:
    """An answer that takes too long to hold a thread for it.

    Args:
        done: What is waited for; cancelled when the client does not wait any more.
        response: Called off the event loop then, for the serialized response.
    """

    done: Future[None]
    response: Callable[[], bytes]


Answer = Callable[[Any, RequestContext], bytes | Later]
"""A request and its context to a serialized response; blocks, and raises `StatusError`."""


def handler(
    answer: Answer, api: str, request_type: Any, pool: Executor, monitor: Monitor | None = None
) -> Any:
    """Return the handler of a method with one request and one response.

    The request is parsed by gRPC, so that interceptors see it. The response is bytes already:
    large tensors are faster written than put into a message first.

    Args:
        answer: What to do.
        api: The method's name.
        request_type: The request's message class.
        pool: Where ``answer`` is run.
        monitor: What is told of each request.
    """

    async def call(request: Any, context: Any) -> bytes:
        observation = _observed(monitor, api, request, context)
        about = RequestContext(
            deadline=_deadline(context),
            principal=PRINCIPAL.get(),
            entrypoint="GRPC",
            api=api,
            observation=observation,
        )
        failure: StatusError | None = None
        try:
            response = await _answered(pool, monitor, answer, request, about)
        except StatusError as error:
            failure = error
        except asyncio.CancelledError:
            _end(monitor, observation, Code.CANCELLED)
            raise
        except Exception as error:  # noqa: BLE001 - logged; costs one request, not the server
            _LOG.exception("%s failed", api)
            failure = StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}")
        _end(monitor, observation, Code.OK if failure is None else failure.code)
        if failure is None:
            return response
        await context.abort(_CODES[failure.code.value], cut(failure.message))
        raise AssertionError("abort raises")

    return grpc.unary_unary_rpc_method_handler(
        call, request_deserializer=_parser(request_type), response_serializer=None
    )


def model_spec(request: Any) -> ModelSpec:
    """Return the version that a request's ``model_spec`` means.

    Raises:
        StatusError: It names none.
    """
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    return spec_from(request.model_spec)


def spec_from(proto: Any) -> ModelSpec:
    """Return the version that a ModelSpec means.

    Raises:
        StatusError: It names no model.
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
    """Return an error's text, cut after so many bytes, as a header cannot carry any length."""
    encoded = message.encode(errors="replace")
    if len(encoded) <= _MESSAGE_LIMIT:
        return message
    return encoded[:_MESSAGE_LIMIT].decode(errors="ignore") + _SUFFIX


def _deadline(context: Any) -> float | None:
    remaining = context.time_remaining()
    if remaining is None or remaining > _FOREVER_S:
        return None
    return time.monotonic() + float(remaining)


class _Malformed:
    """Stands for a request that could not be parsed, with what interceptors look at."""

    model_spec = model_pb2.ModelSpec()
    tasks = ()


def _parser(request_type: Any) -> Callable[[bytes], Any]:
    def parse(raw: bytes) -> Any:
        try:
            return request_type.FromString(raw)
        except DecodeError:
            # If this were raised, gRPC would write a traceback into the log for each.
            return _Malformed()

    return parse


async def _answered(
    pool: Executor,
    monitor: Monitor | None,
    answer: Answer,
    request: Any,
    about: RequestContext,
) -> bytes:
    run = asyncio.get_running_loop().run_in_executor
    response = await run(pool, _work, monitor, answer, request, about)
    if isinstance(response, Later):
        await asyncio.wrap_future(response.done)
        return await run(pool, response.response)
    return response


def _work(
    monitor: Monitor | None, answer: Answer, request: Any, about: RequestContext
) -> bytes | Later:
    if monitor is not None and about.observation is not None:
        monitor.start(about.observation)
    if isinstance(request, _Malformed):
        raise StatusError(Code.INTERNAL, "Exception deserializing request!")
    # It may have waited for a thread longer than its client waits for it.
    if about.deadline is not None and time.monotonic() >= about.deadline:
        raise StatusError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
    return answer(request, about)


def _end(monitor: Monitor | None, observation: Observation | None, code: Code) -> None:
    if monitor is not None and observation is not None:
        monitor.end(observation, code)


def _observed(monitor: Monitor | None, api: str, request: Any, context: Any) -> Observation | None:
    if monitor is None:
        return None
    asked = request.tasks[0] if api == "MultiInference" and request.tasks else request
    name = asked.model_spec.name if hasattr(asked, "model_spec") else ""
    return monitor.begin("GRPC", api, name, _trace_parent(context))


def _trace_parent(context: Any) -> TraceParent | None:
    sent = {key: value for key, value in context.invocation_metadata() or () if key in _TRACE}
    parent = sent.get("traceparent")
    return None if parent is None else TraceParent(parent, sent.get("tracestate"))

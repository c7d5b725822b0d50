"""ASGI middleware for the Open Inference Protocol over REST."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

import orjson

from timonel.serving.asgi import App, Receive, Scope, Send, header, on_disconnect
from timonel.serving.futures import by_size, finished, in_pool, pool_for
from timonel.serving.inference import DataPlane, Execution, Outputs, RequestContext
from timonel.serving.inference.observation import Observation
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.tfs_rest.http import (
    HTTP_STATUS,
    RestOptions,
    body_of,
    context_of,
    is_preflight,
    overdue,
    trace_parent,
    unzip,
)
from timonel.serving.protocols.tfs_rest.response_body import encode_error
from timonel.serving.protocols.v2 import rest_codec
from timonel.serving.protocols.v2.inference import in_time, is_ready, model_view, server_view, start
from timonel.serving.protocols.v2.request import InferResult
from timonel.serving.protocols.v2.routes import (
    HEALTH,
    Action,
    MethodNotAllowedError,
    Route,
    is_v2,
    match,
)
from timonel.serving.signature import bytes_of
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.telemetry.monitor import Monitor

_LOG = logging.getLogger(__name__)
_JSON: Final = b"application/json"
_BINARY: Final = b"application/octet-stream"
_LENGTH_DIGITS: Final = 18
_CORS: Final = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"Content-Type, Inference-Header-Content-Length"),
    (b"access-control-expose-headers", b"Inference-Header-Content-Length"),
]


class Answer(NamedTuple):
    """An HTTP response.

    Args:
        status: The HTTP status.
        body: The content.
        json_length: Length of the JSON in bytes if raw tensors follow; None otherwise.
        allowed: The URL's methods, if the request used another one.
    """

    status: int
    body: bytes
    json_length: int | None = None
    allowed: frozenset[str] = frozenset()


class V2App:
    """Answer requests below ``/v2`` and pass on all others.

    Args:
        app: Application for all other requests.
        plane: Data plane that runs the models.
        pool: Executor for decoding large requests and encoding large responses.
        is_draining: Whether the server is stopping.
        options: CORS and timeout; the dialect has no effect here.
        monitor: Records each request.
    """

    def __init__(
        self,
        app: App,
        plane: DataPlane,
        pool: Executor,
        is_draining: Callable[[], bool] = lambda: False,
        options: RestOptions | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        self._app = app
        self._plane = plane
        self._pool = pool
        self._is_draining = is_draining
        self._options = options or RestOptions()
        self._monitor = monitor

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request."""
        path = scope["raw_path"].decode("latin-1") if scope["type"] == "http" else ""
        if not is_v2(path):
            return self._app(scope, receive, send)
        return self._answer(scope, receive, send, path)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        answer = await self._answered(scope, receive, path)
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": self._headers(answer),
            }
        )
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})

    def _headers(self, answer: Answer) -> list[tuple[bytes, bytes]]:
        kind = _JSON if answer.json_length is None else _BINARY
        headers = [(b"content-type", kind), (b"content-length", str(len(answer.body)).encode())]
        if answer.json_length is not None:
            headers.append((rest_codec.HEADER_LENGTH, str(answer.json_length).encode()))
        if answer.allowed:
            headers.append((b"allow", ", ".join(sorted(answer.allowed)).encode()))
        return headers + _CORS if self._options.cors else headers

    async def _answered(self, scope: Scope, receive: Receive, path: str) -> Answer:
        if scope["method"] == "OPTIONS" and self._options.cors:
            return Answer(200 if is_preflight(scope["headers"]) else 400, b"")
        try:
            route = match(scope["method"], path)
        except MethodNotAllowedError as error:
            return Answer(405, encode_error(str(error)), allowed=error.allowed)
        except StatusError as error:
            return _refusal(error)
        if route.action in HEALTH:
            return self._health(route.action)
        observation: Observation | None = None
        code = Code.INTERNAL
        try:
            body = await self._body(scope, receive) if route.action is Action.INFER else b""
            observation = self._observed(scope, route)
            answer = await self._respond(route, body, scope, receive, observation)
            code = Code.OK
        except StatusError as error:
            code, answer = error.code, _refusal(error)
        except asyncio.CancelledError:
            code = Code.CANCELLED
            raise
        except Exception as error:  # noqa: BLE001 - logged; costs one request, not the server
            _LOG.exception("%s %s failed", scope["method"], path)
            answer = _refusal(StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}"))
        finally:
            if self._monitor is not None:
                self._monitor.end(observation or self._monitor.begin("REST", ""), code)
        return answer

    def _health(self, action: Action) -> Answer:
        if action is Action.LIVE:
            return _json({"live": True})
        all_ready = not (self._plane.unready() or self._is_draining())
        return _json({"ready": all_ready}, 200 if all_ready else 503)

    def _observed(self, scope: Scope, route: Route) -> Observation | None:
        if self._monitor is None:
            return None
        api = route.action.value if route.action is Action.INFER else ""
        name = route.spec.name if route.spec else ""
        return self._monitor.begin("REST", api, name, trace_parent(scope["headers"]))

    async def _respond(
        self,
        route: Route,
        body: bytes,
        scope: Scope,
        receive: Receive,
        observation: Observation | None,
    ) -> Answer:
        if route.spec is None:
            return _json(server_view())
        if route.action is Action.INFER:
            length = _header_length(scope)
            return await self._infer(route.spec, body, length, receive, observation)
        if route.action is Action.MODEL:
            return _json(model_view(self._plane, route.spec))
        ready = is_ready(self._plane, route.spec)
        return _json({"name": route.spec.name, "ready": ready}, 200 if ready else 503)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the decompressed body of a request."""
        encoding = header(scope["headers"], b"content-encoding").strip().lower()
        if encoding not in {b"", b"identity", b"gzip"}:
            raise invalid_argument(
                "expected the Content-Encoding of the request to be gzip, or none, "
                f"got {encoding.decode('latin-1'):.40}"
            )
        body = await body_of(receive)
        if encoding != b"gzip":
            return body
        body = await in_pool(pool_for(self._pool, len(body)), unzip, body)
        if not body:
            raise invalid_argument("expected a body packed by gzip, of at most 100 MiB unpacked")
        return body

    async def _infer(
        self,
        spec: ModelSpec,
        body: bytes,
        json_length: int | None,
        receive: Receive,
        observation: Observation | None,
    ) -> Answer:
        context = context_of(Action.INFER.value, observation, self._options.timeout_s)
        request = await by_size(self._pool, len(body), rest_codec.decode, body, json_length)
        context = in_time(context, request)
        with self._plane.call(spec, context) as call:
            outputs = await _outputs_of(start(call, request), context, receive)
            result = InferResult(call.name, call.version, outputs)
        size = sum(map(bytes_of, outputs.values()))
        return Answer(200, *await by_size(self._pool, size, rest_codec.encode, request, result))


async def _outputs_of(run: Execution, context: RequestContext, receive: Receive) -> Outputs:
    """Wait for a model's outputs.

    Args:
        run: The run; cancelled when the client disconnects.
        context: The request's context with its deadline.
        receive: Returns a message when the client disconnects.

    Raises:
        StatusError: The model rejected the request or failed, or the deadline has passed.
    """
    with on_disconnect(receive, run.future.cancel):
        if not await finished(run.future, _left(context)):
            run.future.cancel()
            raise overdue()
    return run.result()


def _left(context: RequestContext) -> float | None:
    """Return the seconds until a request's deadline; None without a deadline."""
    return None if context.deadline is None else max(0.0, context.deadline - time.monotonic())


def _json(content: Any, status: int = 200) -> Answer:
    return Answer(status, orjson.dumps(content))


def _refusal(error: StatusError) -> Answer:
    return Answer(HTTP_STATUS[error.code], encode_error(error.message))


def _header_length(scope: Scope) -> int | None:
    value = header(scope["headers"], rest_codec.HEADER_LENGTH).strip()
    if not value:
        return None
    if not value.isdigit() or len(value) > _LENGTH_DIGITS:
        raise invalid_argument(
            "expected the header Inference-Header-Content-Length to be a number of bytes, "
            f"got {value.decode('latin-1'):.40}"
        )
    return int(value)

"""ASGI application for TensorFlow Serving's REST API.

It uses no framework, as the API is one prefix and a few responses: see docs/design/serving.md for
the cost of a framework per request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import orjson

from timonel.serving.asgi import Receive, Scope, Send, is_gzipped, on_disconnect
from timonel.serving.inference.observation import Observation
from timonel.serving.protocols.tfs_rest.http import (
    CORS,
    JSON,
    TEXT,
    Answer,
    body_of,
    content_type,
    error_answer,
    is_preflight,
    trace_parent,
    unexpected,
)
from timonel.serving.protocols.tfs_rest.predict import PredictRequest, RestBackend
from timonel.serving.protocols.tfs_rest.routes import (
    COMPUTING,
    Action,
    Route,
    VersionTooLargeError,
    is_rest,
    malformed,
    match,
    missing_name,
)
from timonel.serving.protocols.tfs_rest.views import (
    config_text,
    metadata_view,
    models_view,
    status_view,
)
from timonel.serving.status import Code, StatusError, invalid_argument

_LOG = logging.getLogger(__name__)
_NOT_FOUND_PAGE = (
    b"<HTML><HEAD>\n<TITLE>404 Not Found</TITLE>\n</HEAD><BODY>\n<H1>Not Found</H1>\n"
    b"</BODY></HTML>\n"
)


class RestApp:
    """ASGI application for TensorFlow Serving's REST API.

    Args:
        backend: The parts shared with connections that bypass ASGI.
        is_draining: Whether the server has been asked to stop.
    """

    def __init__(
        self, backend: RestBackend, is_draining: Callable[[], bool] = lambda: False
    ) -> None:
        self._backend = backend
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        target = _target(scope)
        of_api = is_rest(target)
        answer = await self._rest(scope, receive, target) if of_api else self._page(scope["path"])
        body = answer.body
        headers = [(b"content-length", str(len(body)).encode())]
        if answer.content_type is not None:
            headers.insert(0, (b"content-type", answer.content_type))
        if of_api and self._backend.options.cors:
            headers += CORS
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if scope["method"] == "HEAD":
            body = b""
        await send({"type": "http.response.body", "body": body})

    def _page(self, path: str) -> Answer:
        if path == "/livez":
            return Answer(200, b"ok", b"text/plain")
        if path == "/readyz":
            unready = self._backend.plane.unready()
            if not unready and not self._is_draining():
                return Answer(200, b"ok", b"text/plain")
            reason = "draining" if self._is_draining() else f"not loaded: {', '.join(unready)}"
            return Answer(503, reason.encode(), b"text/plain")
        return Answer(404, _NOT_FOUND_PAGE, b"text/html")

    async def _rest(self, scope: Scope, receive: Receive, target: str) -> Answer:
        if scope["method"] == "OPTIONS":
            return Answer(200 if is_preflight(scope["headers"]) else 400, b"", None)
        try:
            route = match(scope["method"], target)
            if route.action not in COMPUTING:
                return self._read(scope, route, target)
            body = await body_of(receive)
        except VersionTooLargeError as error:
            self._count(Code.INVALID_ARGUMENT)
            if not self._backend.options.dialect.explains_bad_versions:
                return Answer(400, b"")
            return error_answer(invalid_argument(str(error)))
        except StatusError as error:
            self._count(error.code)
            return error_answer(error)
        except asyncio.CancelledError:
            self._count(Code.CANCELLED)
            raise
        return await self._compute(scope, receive, route, body)

    async def _compute(self, scope: Scope, receive: Receive, route: Route, body: bytes) -> Answer:
        headers = scope["headers"]
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        set_reply = partial(_set_reply, reply)
        request = PredictRequest(
            self._backend, route, content_type(headers), trace_parent(headers), set_reply
        )
        request.begin(body, zipped=is_gzipped(headers))
        if reply.done():
            return reply.result()

        def give_up() -> None:
            request.cancel()
            set_reply(error_answer(StatusError(Code.CANCELLED, "the request was given up")))

        try:
            with on_disconnect(receive, give_up):
                return await reply
        finally:
            request.cancel()

    def _read(self, scope: Scope, route: Route, target: str) -> Answer:
        """Answer from the state of the server, without running a model."""
        observation: Observation | None = None
        if self._backend.monitor is not None:
            trace = trace_parent(scope["headers"])
            observation = self._backend.monitor.begin("REST", "", route.spec.name, trace)
        code = Code.OK
        try:
            return Answer(200, self._content(route, target), TEXT if route.as_text else JSON)
        except Exception as error:  # noqa: BLE001 - costs one request, not the server
            if not isinstance(error, StatusError):
                _LOG.exception("%s %s failed", scope["method"], target)
                error = unexpected(error)
            code = error.code
            return error_answer(error)
        finally:
            if self._backend.monitor is not None and observation is not None:
                self._backend.monitor.end(observation, code)

    def _content(self, route: Route, target: str) -> bytes:
        if route.action is Action.LIST:
            if not self._backend.options.dialect.lists_models:
                raise missing_name()
            return orjson.dumps(models_view(self._backend.plane))
        if route.action is Action.CONFIG:
            if not self._backend.options.dialect.lists_models:
                raise malformed("GET", target)
            return config_text(self._backend.plane.configuration(), as_text=route.as_text)
        if route.action is Action.STATUS:
            # A label is ignored, as in TensorFlow Serving.
            return orjson.dumps(
                status_view(self._backend.plane.status(route.spec.name, route.spec.version))
            )
        return orjson.dumps(metadata_view(self._backend.plane.metadata(route.spec)))

    def _count(self, code: Code) -> None:
        """Count a request that was rejected before its model was known."""
        monitor = self._backend.monitor
        if monitor is not None:
            monitor.end(monitor.begin("REST", ""), code)


def _set_reply(reply: asyncio.Future[Answer], answer: Answer) -> None:
    # The task that awaits the future may have been cancelled.
    if not reply.done():
        reply.set_result(answer)


def _target(scope: Scope) -> str:
    raw: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("utf-8", "surrogateescape")

"""The REST skin: a plain ASGI application over the data plane.

Plain, because the whole of it is one prefix and a few answers: see docs/design/serving.md for
what a framework would cost per request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

import orjson

from timonel.serving.asgi import Receive, Scope, Send, is_gzipped
from timonel.serving.core import DataPlane
from timonel.serving.monitoring.monitor import Monitor
from timonel.serving.monitoring.observation import Observation
from timonel.serving.rest.answers import CORS, JSON, TEXT, Answer, error_answer, unexpected
from timonel.serving.rest.computing import Computing
from timonel.serving.rest.http import (
    body_of,
    content_type,
    context_of,
    is_preflight,
    trace_parent,
)
from timonel.serving.rest.options import RestOptions
from timonel.serving.rest.routes import (
    COMPUTING,
    Action,
    Route,
    VersionTooLargeError,
    is_rest,
    malformed,
    match,
    missing_name,
)
from timonel.serving.rest.views import config_text, metadata_view, models_view, status_view
from timonel.serving.status import Code, StatusError, invalid_argument

_LOG = logging.getLogger(__name__)
_NOT_FOUND_PAGE = (
    b"<HTML><HEAD>\n<TITLE>404 Not Found</TITLE>\n</HEAD><BODY>\n<H1>Not Found</H1>\n"
    b"</BODY></HTML>\n"
)


class RestApp:
    """Answers HTTP requests.

    Args:
        plane: Where requests are computed.
        pool: Where large ones are read and written, so that the event loop is never held up.
        is_draining: Whether the server has been asked to stop.
        options: How they are answered.
        monitor: What is told of each request.
    """

    def __init__(
        self,
        plane: DataPlane,
        pool: Executor,
        is_draining: Callable[[], bool] = lambda: False,
        options: RestOptions | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        self._plane = plane
        self._is_draining = is_draining
        self._options = options or RestOptions()
        self._dialect = self._options.dialect
        self._computing = Computing(plane, pool, self._options)
        self._monitor = monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        target = _target(scope)
        of_api = is_rest(target)
        answer = await self._rest(scope, receive, target) if of_api else self._page(scope["path"])
        body = answer.body
        headers = [(b"content-length", str(len(body)).encode())]
        if answer.content_type is not None:
            headers.insert(0, (b"content-type", answer.content_type))
        if of_api and self._options.cors:
            headers += CORS
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if scope["method"] == "HEAD":
            body = b""
        await send({"type": "http.response.body", "body": body})

    def _page(self, path: str) -> Answer:
        if path == "/livez":
            return Answer(200, b"ok", b"text/plain")
        if path == "/readyz":
            unready = self._plane.unready()
            if not unready and not self._is_draining():
                return Answer(200, b"ok", b"text/plain")
            reason = "draining" if self._is_draining() else f"not loaded: {', '.join(unready)}"
            return Answer(503, reason.encode(), b"text/plain")
        return Answer(404, _NOT_FOUND_PAGE, b"text/html")

    async def _rest(self, scope: Scope, receive: Receive, target: str) -> Answer:
        if scope["method"] == "OPTIONS":
            return Answer(200 if is_preflight(scope["headers"]) else 400, b"", None)
        observation: Observation | None = None
        code = Code.INTERNAL
        try:
            route = match(scope["method"], target)
            body = await body_of(receive) if route.action in COMPUTING else b""
            observation = self._observed(scope, route)
            if route.action in COMPUTING:
                content = await self._computed(scope, receive, route, body, observation)
            else:
                content = self._read(route, target)
            code = Code.OK
            return Answer(200, content, TEXT if route.as_text else JSON)
        except VersionTooLargeError as error:
            code = Code.INVALID_ARGUMENT
            if not self._dialect.explains_bad_versions:
                return Answer(400, b"")
            return self._error(invalid_argument(str(error)))
        except StatusError as error:
            code = error.code
            return self._error(error)
        except asyncio.CancelledError:
            code = Code.CANCELLED
            raise
        except Exception as error:  # noqa: BLE001 - logged; costs one request, not the server
            _LOG.exception("%s %s failed", scope["method"], target)
            return self._error(unexpected(error))
        finally:
            if self._monitor is not None:
                self._monitor.end(observation or self._monitor.begin("REST", ""), code)

    def _observed(self, scope: Scope, route: Route) -> Observation | None:
        if self._monitor is None:
            return None
        api = route.action.value if route.action in COMPUTING else ""
        return self._monitor.begin("REST", api, route.spec.name, trace_parent(scope["headers"]))

    async def _computed(
        self,
        scope: Scope,
        receive: Receive,
        route: Route,
        body: bytes,
        observation: Observation | None,
    ) -> bytes:
        context = context_of(route.action.value, observation, self._options.timeout_s)
        if is_gzipped(scope["headers"]):
            body = await self._computing.unpacked(body, context)
        media = content_type(scope["headers"])
        return await self._computing.answer(route, body, context, receive, media)

    def _read(self, route: Route, target: str) -> bytes:
        if route.action is Action.LIST:
            if not self._dialect.lists_models:
                raise missing_name()
            return orjson.dumps(models_view(self._plane))
        if route.action is Action.CONFIG:
            if not self._dialect.lists_models:
                raise malformed("GET", target)
            return config_text(self._plane.configuration(), as_text=route.as_text)
        if route.action is Action.STATUS:
            # A label is ignored, as by TensorFlow Serving.
            statuses = self._plane.status(route.spec.name, route.spec.version)
            return orjson.dumps(status_view(statuses))
        return orjson.dumps(metadata_view(self._plane.metadata(route.spec)))

    def _error(self, error: StatusError) -> Answer:
        return error_answer(error)


def _target(scope: Scope) -> str:
    raw: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("utf-8", "surrogateescape")

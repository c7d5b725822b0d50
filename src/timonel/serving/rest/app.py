"""The REST skin: a plain ASGI application over the data plane.

Plain, because the whole of it is one prefix and five answers: see docs/design/serving.md for
what a framework would cost per request.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from concurrent.futures import Executor
from typing import Any

import orjson

from timonel.serving.core import DataPlane
from timonel.serving.rest.codec import decode, parse_request
from timonel.serving.rest.encoding import encode, encode_error
from timonel.serving.rest.routes import PREFIX, Action, Route, match
from timonel.serving.rest.views import metadata_view, models_view, status_view
from timonel.serving.runtimes.base import DEFAULT_SIGNATURE
from timonel.serving.servables import ModelSpec
from timonel.serving.status import Code, StatusError, invalid_argument

_LOG = logging.getLogger(__name__)
_GUNZIPPED_LIMIT = 100 * 2**20
_JSON = b"application/json"
_NOT_FOUND_PAGE = (
    b"<html><head><title>404 Not Found</title></head><body><h1>Not Found</h1></body></html>"
)
HTTP_STATUS = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Answer = tuple[int, bytes, bytes]
"""HTTP status, content type, body."""


class RestApp:
    """Answers HTTP requests.

    Args:
        plane: Where requests are computed.
        pool: Where they are decoded and computed, so that the event loop is never held up.
        is_draining: Whether the server has been asked to stop.
    """

    def __init__(
        self, plane: DataPlane, pool: Executor, is_draining: Callable[[], bool] = lambda: False
    ) -> None:
        self._plane = plane
        self._pool = pool
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        status, content_type, body = await self._answer(scope, receive)
        headers = [
            (b"content-type", content_type),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if scope["method"] == "HEAD":
            body = b""
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        path: str = scope["path"]
        if not path.lower().startswith(PREFIX):
            return self._health(path)
        try:
            route = match(scope["method"], _target(scope))
            if route.action is not Action.PREDICT:
                return 200, _JSON, orjson.dumps(self._read(route))
            body = await _body(scope, receive)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._predict, route.spec, body)
        except StatusError as error:
            return _error(error)
        except Exception as error:  # noqa: BLE001 - logged; costs one request, not the server
            _LOG.exception("%s %s failed", scope["method"], path)
            return _error(StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}"))

    def _health(self, path: str) -> Answer:
        if path == "/livez":
            return 200, b"text/plain", b"ok"
        if path == "/readyz":
            unready = self._plane.unready()
            if not unready and not self._is_draining():
                return 200, b"text/plain", b"ok"
            reason = "draining" if self._is_draining() else f"not loaded: {', '.join(unready)}"
            return 503, b"text/plain", reason.encode()
        return 404, b"text/html", _NOT_FOUND_PAGE

    def _read(self, route: Route) -> dict[str, Any]:
        if route.action is Action.LIST:
            return models_view(self._plane)
        if route.action is Action.STATUS:
            return status_view(self._plane.status(route.spec.name, route.spec.version))
        return metadata_view(self._plane.metadata(route.spec))

    def _predict(self, spec: ModelSpec, body: bytes) -> Answer:
        request = parse_request(body)
        with self._plane.call(spec) as call:
            signature = call.find(request.signature_name)
            if signature is None:
                name = request.signature_name or DEFAULT_SIGNATURE
                raise invalid_argument(
                    f'Serving signature name: "{name}" not found in signature def'
                )
            outputs = call.predict(signature, decode(request, signature.inputs))
        return 200, _JSON, encode(outputs, by_row=request.by_row)


def _error(error: StatusError) -> Answer:
    return HTTP_STATUS[error.code], _JSON, encode_error(error.message)


def _target(scope: Scope) -> str:
    raw: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("latin-1")


async def _body(scope: Scope, receive: Receive) -> bytes:
    chunks = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise StatusError(Code.CANCELLED, "the client closed the connection")
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    return _gunzipped(body) if _is_gzipped(scope["headers"]) else body


def _is_gzipped(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-encoding" and b"gzip" in value for name, value in headers)


def _gunzipped(body: bytes) -> bytes:
    """Return what was compressed; nothing if it is damaged or too large, as TensorFlow Serving."""
    stream = zlib.decompressobj(wbits=31)
    try:
        plain = stream.decompress(body, _GUNZIPPED_LIMIT)
    except zlib.error:
        return b""
    return b"" if stream.unconsumed_tail or not stream.eof else plain

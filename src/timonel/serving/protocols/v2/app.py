"""ASGI middleware for the Open Inference Protocol over REST, and its URLs.

`timonel.serving.auth.url_rights` maps the same URLs to permissions; a property test keeps them in
sync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import orjson

from timonel.serving.asgi import App, Receive, Scope, Send, header, on_disconnect
from timonel.serving.futures import by_size, in_pool, pool_for
from timonel.serving.inference.context import Observation
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.tfs_rest.http import (
    HTTP_STATUS,
    TIMED_OUT,
    body_of,
    correlation_of,
    is_preflight,
    unzip,
)
from timonel.serving.protocols.tfs_rest.predict import RestBackend, context_of
from timonel.serving.protocols.tfs_rest.response_body import encode_error
from timonel.serving.protocols.v2 import rest_codec
from timonel.serving.protocols.v2.requests import (
    InferResult,
    in_time,
    is_ready,
    model_view,
    outputs_in_time,
    server_view,
    spec_of,
    start,
)
from timonel.serving.signature import bytes_of
from timonel.serving.status import Code, StatusError, invalid_argument, not_found

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
_ROOT: Final = "/v2"
_GET: Final = frozenset({"GET"})


class V2Action(Enum):
    """An endpoint of the server or of a model."""

    LIVE = "live"
    READY = "ready"
    SERVER = "server"
    MODEL = "model"
    MODEL_READY = "model_ready"
    INFER = "infer"


HEALTH: Final = frozenset({V2Action.LIVE, V2Action.READY})
_SERVER: Mapping[tuple[str, ...], V2Action] = {
    (): V2Action.SERVER,
    ("",): V2Action.SERVER,
    ("health", "live"): V2Action.LIVE,
    ("health", "ready"): V2Action.READY,
}
_MODEL: Mapping[tuple[str, ...], V2Action] = {
    (): V2Action.MODEL,
    ("ready",): V2Action.MODEL_READY,
    ("infer",): V2Action.INFER,
}
_METHODS: Mapping[V2Action, frozenset[str]] = {
    V2Action.LIVE: _GET | {"HEAD"},
    V2Action.READY: _GET | {"HEAD"},
    V2Action.INFER: frozenset({"POST"}),
}


@dataclass(frozen=True)
class V2Route:
    """An action and its model version, if any."""

    action: V2Action
    spec: ModelSpec | None = None


class MethodNotAllowedError(Exception):
    """The URL does not support the request's method.

    Args:
        allowed: The supported methods.
    """

    def __init__(self, allowed: frozenset[str]) -> None:
        super().__init__(f"Method not allowed. Use {' or '.join(sorted(allowed))}.")
        self.allowed = allowed


def is_v2(path: str) -> bool:
    """Whether a path belongs to this protocol."""
    return path == _ROOT or path.startswith(f"{_ROOT}/")


def match(method: str, path: str) -> V2Route:
    """Return the route of a request.

    Args:
        method: The HTTP method.
        path: The path, still percent-encoded.

    Raises:
        StatusError: The URL does not exist.
        MethodNotAllowedError: The URL does not support the method.
    """
    parts = tuple(path.split("/")[2:])
    route = _of_model(parts) if parts[:1] == ("models",) else _of_server(parts)
    if route is None:
        raise not_found(f"Not a URL of the Open Inference Protocol: {path:.200}")
    allowed = _METHODS.get(route.action, _GET)
    if method not in allowed:
        raise MethodNotAllowedError(allowed)
    return route


def _of_server(parts: tuple[str, ...]) -> V2Route | None:
    action = _SERVER.get(parts)
    return None if action is None else V2Route(action)


def _of_model(parts: tuple[str, ...]) -> V2Route | None:
    """Return the route of ``models/<name>[/versions/<version>][/<verb>]``."""
    name, rest = unquote("".join(parts[1:2])), parts[2:]
    version = ""
    if len(rest) > 1 and rest[0] == "versions":
        version, rest = unquote(rest[1]), rest[2:]
        if not version:
            return None
    action = _MODEL.get(rest)
    return None if action is None or not name else V2Route(action, spec_of(name, version))


class V2Response(NamedTuple):
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
        backend: The parts shared with the other REST API.
        is_draining: Whether the server is stopping.
    """

    def __init__(
        self,
        app: App,
        backend: RestBackend,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._plane, self._pool = backend.plane, backend.pool
        self._settings, self._monitor = backend.settings, backend.monitor
        self._is_draining = is_draining

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

    def _headers(self, answer: V2Response) -> list[tuple[bytes, bytes]]:
        kind = _JSON if answer.json_length is None else _BINARY
        headers = [(b"content-type", kind), (b"content-length", str(len(answer.body)).encode())]
        if answer.json_length is not None:
            headers.append((rest_codec.HEADER_LENGTH, str(answer.json_length).encode()))
        if answer.allowed:
            headers.append((b"allow", ", ".join(sorted(answer.allowed)).encode()))
        return headers + _CORS if self._settings.cors else headers

    async def _answered(self, scope: Scope, receive: Receive, path: str) -> V2Response:
        if scope["method"] == "OPTIONS" and self._settings.cors:
            return V2Response(200 if is_preflight(scope["headers"]) else 400, b"")
        try:
            route = match(scope["method"], path)
        except MethodNotAllowedError as error:
            return V2Response(405, encode_error(str(error)), allowed=error.allowed)
        except StatusError as error:
            return _refusal(error)
        if route.action in HEALTH:
            return self._health(route.action)
        observation: Observation | None = None
        code = Code.INTERNAL
        try:
            body = await self._body(scope, receive) if route.action is V2Action.INFER else b""
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

    def _health(self, action: V2Action) -> V2Response:
        if action is V2Action.LIVE:
            return _json({"live": True})
        all_ready = not (self._plane.unready() or self._is_draining())
        return _json({"ready": all_ready}, 200 if all_ready else 503)

    def _observed(self, scope: Scope, route: V2Route) -> Observation | None:
        if self._monitor is None:
            return None
        api = route.action.value if route.action is V2Action.INFER else ""
        name = route.spec.name if route.spec else ""
        return self._monitor.begin("REST", api, name, correlation_of(scope["headers"]))

    async def _respond(
        self,
        route: V2Route,
        body: bytes,
        scope: Scope,
        receive: Receive,
        observation: Observation | None,
    ) -> V2Response:
        if route.spec is None:
            return _json(server_view())
        if route.action is V2Action.INFER:
            length = _header_length(scope)
            return await self._infer(route.spec, body, length, receive, observation)
        if route.action is V2Action.MODEL:
            return _json(model_view(self._plane, route.spec))
        ready = is_ready(self._plane, route.spec)
        return _json({"name": route.spec.name, "ready": ready}, 200 if ready else 503)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the decompressed body of a request."""
        encoding = header(scope["headers"], b"content-encoding").strip().lower()
        if encoding not in {b"", b"identity", b"gzip"}:
            raise invalid_argument(
                f"Unsupported Content-Encoding {encoding.decode('latin-1'):.40}. Use gzip or none."
            )
        body = await body_of(receive)
        if encoding != b"gzip":
            return body
        body = await in_pool(pool_for(self._pool, len(body)), unzip, body)
        if not body:
            raise invalid_argument(
                "The gzip body is damaged, or larger than 100 MiB when decompressed."
            )
        return body

    async def _infer(
        self,
        spec: ModelSpec,
        body: bytes,
        json_length: int | None,
        receive: Receive,
        observation: Observation | None,
    ) -> V2Response:
        context = context_of(V2Action.INFER.value, observation, self._settings.timeout_s)
        request = await by_size(self._pool, len(body), rest_codec.decode, body, json_length)
        context = in_time(context, request)
        with self._plane.call(spec, context) as call:
            run = start(call, request)
            with on_disconnect(receive, run.future.cancel):
                outputs = await outputs_in_time(run, context, TIMED_OUT)
            result = InferResult(call.name, call.version, outputs)
        size = sum(map(bytes_of, outputs.values()))
        return V2Response(200, *await by_size(self._pool, size, rest_codec.encode, request, result))


def _json(content: Any, status: int = 200) -> V2Response:
    return V2Response(status, orjson.dumps(content))


def _refusal(error: StatusError) -> V2Response:
    return V2Response(HTTP_STATUS[error.code], encode_error(error.message))


def _header_length(scope: Scope) -> int | None:
    value = header(scope["headers"], rest_codec.HEADER_LENGTH).strip()
    if not value:
        return None
    if not value.isdigit() or len(value) > _LENGTH_DIGITS:
        raise invalid_argument(
            "The header Inference-Header-Content-Length must be a number of bytes, "
            f"got {value.decode('latin-1'):.40}."
        )
    return int(value)

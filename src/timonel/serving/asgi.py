"""ASGI types, responses, errors as responses, and the route table of the REST port."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from timonel.serving.settings.auth import Right
from timonel.serving.settings.server import NOT_STARTED_HEADER
from timonel.serving.status import HTTP_STATUS, Code, NotStartedError, StatusError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
NOT_STARTED = ((b"retry-after", b"1"), (NOT_STARTED_HEADER.encode(), b"1"))
"""Headers of the response to a request that nothing computes."""
_WATCH_AFTER_S = 0.1
"""Delay before a task waits for a client's disconnection.

A task for each quick request would cost more than it saves.
"""
JSON = b"application/json"
_ASKS_FOR_KEY: Final = ((b"www-authenticate", b"Bearer"),)
_NOT_FOUND_PAGE = (
    b"<HTML><HEAD>\n<TITLE>404 Not Found</TITLE>\n</HEAD><BODY>\n<H1>Not Found</H1>\n"
    b"</BODY></HTML>\n"
)


_ANYTHING = re.compile(".*", re.DOTALL)


class Response(NamedTuple):
    """A complete HTTP response; without a content type if that is None."""

    status: int
    body: bytes
    content_type: bytes | None = JSON
    headers: Sequence[tuple[bytes, bytes]] = ()

    async def send(self, scope: Scope, send: Send) -> None:
        """Answer a request."""
        headers = [(b"content-length", b"%d" % len(self.body)), *self.headers]
        if self.content_type is not None:
            headers.insert(0, (b"content-type", self.content_type))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else self.body
        await send({"type": "http.response.body", "body": body})


_ENDING = Response(503, b'{"error":"the server ended before it could answer this request"}')


def json_response(content: Any, status: int = 200) -> Response:
    """Return a response with a JSON body."""
    return Response(status, orjson.dumps(content))


def encode_error(message: str) -> bytes:
    """Return the body of an error response."""
    return orjson.dumps({"error": message.encode("utf-8", "backslashreplace").decode()})


class BodyTooLargeError(StatusError):
    """A request body exceeds the size limit, as sent or decompressed."""


def error_response(error: StatusError) -> Response:
    """Convert an error to a response."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    if isinstance(error, NotStartedError):
        headers = NOT_STARTED
    elif error.code is Code.UNAUTHENTICATED:
        headers = _ASKS_FOR_KEY
    status = 413 if isinstance(error, BodyTooLargeError) else HTTP_STATUS[error.code]
    return Response(status, encode_error(error.message), headers=headers)


class Request(NamedTuple):
    """A request that a route matched."""

    scope: Scope
    receive: Receive
    target: str
    match: re.Match[str]

    @property
    def headers(self) -> Headers:
        """Names in lower case, and values."""
        headers: Headers = self.scope["headers"]
        return headers


Answer = Callable[[Request], Awaitable[Response]]
Guard = Callable[["Right | None", Request, Answer], Awaitable[Response]]


class Route(NamedTuple):
    """A row of the route table.

    Args:
        methods: The methods; empty for any.
        pattern: Matches the whole percent-encoded path with its query.
        right: The right that a request needs; None: anyone may ask.
    """

    methods: frozenset[str]
    pattern: re.Pattern[str]
    answer: Answer
    right: Right | None = Right.USE


def at(path: str) -> re.Pattern[str]:
    """Return the pattern of a path, itself a regular expression, with any query."""
    return re.compile(rf"{path}(?:\?.*)?", re.DOTALL)


class Router:
    """ASGI application: the first matching row of a table answers, if the guard lets it."""

    def __init__(self, routes: Iterable[Route], guard: Guard | None = None) -> None:
        self._routes = (*routes, Route(frozenset(), _ANYTHING, _not_found))
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        target, method, guard = _target(scope), scope["method"], self._guard
        for methods, pattern, answer, right in self._routes:
            if not methods or method in methods:
                match = pattern.fullmatch(target)
                if match is not None:
                    request = Request(scope, receive, target, match)
                    answered = guard(right, request, answer) if guard else answer(request)
                    try:
                        response = await answered
                    except asyncio.CancelledError:  # by uvicorn: the grace period is over
                        await _ENDING.send(scope, send)
                        raise
                    await response.send(scope, send)
                    return


async def _not_found(_: Request) -> Response:
    return Response(404, _NOT_FOUND_PAGE, b"text/html")


def _target(scope: Scope) -> str:
    raw: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("utf-8", "surrogateescape")


def header(headers: Headers, name: bytes) -> bytes:
    """Return the first value of a header with a lower-case name; empty if it is missing."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def is_gzipped(headers: Headers) -> bool:
    """Return whether a request's body is declared as gzip-compressed."""
    return any(n == b"content-encoding" and b"gzip" in value.lower() for n, value in headers)


@contextlib.contextmanager
def on_disconnect(receive: Receive | None, cancel: Callable[[], object]) -> Iterator[None]:
    """Call ``cancel`` if the client disconnects during the block.

    Args:
        receive: The request's channel, after its body has been read; None to watch nothing.
    """
    if receive is None:
        yield
        return

    async def watch() -> None:
        if (await receive())["type"] == "http.disconnect":
            cancel()

    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    timer = loop.call_later(_WATCH_AFTER_S, lambda: tasks.append(loop.create_task(watch())))
    try:
        yield
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()

"""HTTP connections that answer plain compute requests without ASGI.

A request bypasses uvicorn's protocol if no other request is running on its connection and the whole
head has arrived. Later bytes wait until it is answered. Clients send the same head again and again,
so parsed heads are cached.

Worth 20 to 25 % of the requests per second of a small model (16 connections, a process for each
version).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from timonel.serving.asgi import header
from timonel.serving.auth.connection_limits import BoundedHttp, Part
from timonel.serving.auth.origin_check import is_host_allowed
from timonel.serving.inference.context import Correlation
from timonel.serving.protocols.tfs_rest.http import (
    COMPUTING,
    CORS,
    RestResponse,
    Route,
    VersionTooLargeError,
    content_type,
    correlation_of,
    match,
)
from timonel.serving.protocols.tfs_rest.predict import PredictRequest, RestBackend
from timonel.serving.status import StatusError

_CORS = b"".join(b"%b: %b\r\n" % pair for pair in CORS)
_END = b"\r\n\r\n"
_MAX_HEAD_BYTES = 2048
"""ASGI handles longer heads."""
_CACHED_HEADS = 1024
_EXCLUDED = frozenset(
    {b"connection", b"content-encoding", b"expect", b"origin", b"transfer-encoding"}
)
"""Headers that exclude a request from the fast path."""


def predict_protocol(
    base: type[BoundedHttp],
    backend: RestBackend,
    max_body: int | None = None,
    hosts: frozenset[str] | None = None,
) -> type[BoundedHttp]:
    """Create a protocol class that answers plain requests itself, for `uvicorn.Config`.

    Args:
        base: The protocol for all other requests, with its limits.
        backend: The shared parts of all requests.
        max_body: Largest accepted body in bytes; None for no limit.
        hosts: Accepted host names besides loopback names; None for any.
    """
    parts = {"backend": backend, "max_body": max_body, "hosts": hosts}
    return type("PredictHttp", (_PredictHttp, base), parts)


class Head(NamedTuple):
    """The head of a compute request.

    Args:
        route: The action and the model.
        length: Length of the body in bytes.
        content_type: The body's content type; empty if absent.
        correlation: The headers that relate it to other requests.
        host: The ``Host`` header; empty if absent.
    """

    route: Route
    length: int
    content_type: str
    correlation: Correlation | None
    host: bytes = b""


@functools.lru_cache(_CACHED_HEADS)
def read_head(text: bytes) -> Head | None:
    """Parse a request head; None unless it is a plain compute request. Pure.

    Args:
        text: The request line and headers, without the empty line after them.
    """
    collector = _HeadCollector()
    parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(text + _END)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    headers = collector.headers
    length = header(headers, b"content-length")
    is_plain = collector.is_whole and parser.get_http_version() == "1.1" and bool(length)
    if not is_plain or any(n in _EXCLUDED and v.lower() != b"keep-alive" for n, v in headers):
        return None
    route = _computing_route(parser.get_method(), collector.url)
    if route is None:
        return None
    return Head(
        route, int(length), content_type(headers), correlation_of(headers), header(headers, b"host")
    )


def _computing_route(method: bytes, url: bytes) -> Route | None:
    if method != b"POST" or not url.startswith(b"/") or b"#" in url:
        return None
    try:
        route = match("POST", url.decode("utf-8", "surrogateescape"))
    except (StatusError, VersionTooLargeError):
        return None
    return route if route.action in COMPUTING else None


class _HeadCollector:
    """Parser callbacks."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_whole = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.is_whole = True


class _PredictHttp(BoundedHttp):
    backend: RestBackend
    max_body: int | None
    hosts: frozenset[str] | None
    _head: Head | None = None
    """The head of a request whose body is arriving."""
    _pieces: list[bytes]
    _missing = 0
    """Bytes of that body still to come; negative after surplus bytes."""
    _request: PredictRequest | None = None
    _early = b""
    """Bytes received while a request is running."""
    _is_last = False

    def data_received(self, data: bytes) -> None:
        if self._request is not None or self._early:
            self._early += data
            self.flow.pause_reading()
        elif self._head is not None:
            self._take(self._head, data)
        elif (head := self._head_of(data)) is not None:
            self._stop_timer()
            self._unset_keepalive_if_required()
            self._pieces, self._missing = [], head.length
            self._take(head, data[data.index(_END) + len(_END) :])
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head, self._pieces, self._early = None, [], b""
        if self._request is not None:
            self._request.cancel()
            self._request = None
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._request is not None or self._head is not None:
            self._is_last = True
        else:
            super().shutdown()

    def _head_of(self, data: bytes) -> Head | None:
        """Return the head if the request can be answered here."""
        if self._part is not Part.NOTHING or self.flow.write_paused or self.transport.is_closing():
            return None
        if self._is_answering():
            return None
        end = data.find(_END, 0, min(_MAX_HEAD_BYTES, self.limits.max_head))
        if end < 0:
            return None
        head = read_head(data[:end])
        return head if head is not None and self._accepts(head) else None

    def _accepts(self, head: Head) -> bool:
        """Whether the size of the body and the Host header are accepted."""
        fits = self.max_body is None or head.length <= self.max_body
        return fits and is_host_allowed(head.host, self.hosts)

    def _is_answering(self) -> bool:
        """Whether a previous request still awaits its response."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _take(self, head: Head, data: bytes) -> None:
        """Add a piece of a body; answer the complete request."""
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            if self._head is None:
                self._head, self._part = head, Part.BODY
                self._time_the_rest()
            return
        if self._head is not None:
            self._stop_timer()
            self._head, self._part = None, Part.NOTHING
        self._timed = Part.NOTHING
        body = b"".join(self._pieces)
        self._pieces = []
        if self._missing < 0:
            body, self._early = body[: head.length], body[head.length :]
        request = self._request = PredictRequest(
            self.backend, head.route, head.content_type, head.correlation, self._reply
        )
        request.begin(body)

    def _reply(self, answer: RestResponse) -> None:
        self._request = None
        if not self.transport.is_closing():
            self.transport.write(self._response(answer))
            if self._is_last:
                self.transport.close()
        self.on_response_complete()
        if self._early:
            # Not directly: a request that is answered synchronously would recurse.
            self.loop.call_soon(self._take_early)

    def _take_early(self) -> None:
        early, self._early = self._early, b""
        if early and not self.transport.is_closing():
            self.data_received(early)

    def _response(self, answer: RestResponse) -> bytes:
        kind = answer.content_type
        return b"%b%b%bcontent-length: %d\r\n%b\r\n%b" % (
            STATUS_LINE[answer.status],
            b"" if kind is None else b"content-type: %b\r\n" % kind,
            b"connection: close\r\n" if self._is_last else b"",
            len(answer.body),
            _CORS if self.backend.settings.cors else b"",
            answer.body,
        )

    def _may_answer(self) -> bool:
        return self._head is not None or super()._may_answer()

"""HTTP connections that answer plain compute requests without ASGI.

A request bypasses uvicorn's protocol if no other request is running on its connection and the whole
head has arrived. Later bytes wait until it is answered. Clients send the same head again and again,
so parsed heads are cached.

Worth 20 to 25 % of the requests per second of a small model (16 connections).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from timonel.serving.asgi import Response, error_response, header
from timonel.serving.auth.connection_limits import BoundedHttp, RequestPart
from timonel.serving.auth.origin_check import is_host_allowed
from timonel.serving.inference.context import Correlation
from timonel.serving.inference.flow import RequestExchange
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.http import content_type, correlation_of
from timonel.serving.protocols.tfs_rest.api import CODECS, COMPUTE, CORS, RestApi, spec_of
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
    api: RestApi,
    hosts: frozenset[str] | None = None,
) -> type[BoundedHttp]:
    """Create a protocol class that answers plain requests itself, for `uvicorn.Config`."""
    parts = {"api": api, "hosts": hosts}
    return type("PredictHttp", (_PredictHttp, base), parts)


class Head(NamedTuple):
    """The head of a compute request."""

    verb: str
    spec: ModelSpec
    length: int
    content_type: str
    correlation: Correlation | None
    host: bytes = b""


@functools.lru_cache(_CACHED_HEADS)
def read_head(text: bytes) -> Head | None:
    """Parse a request head; None unless it is a plain compute request. Pure."""
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
    url = collector.url
    if parser.get_method() != b"POST" or not url.startswith(b"/") or b"#" in url:
        return None
    match = COMPUTE.fullmatch(url.decode("utf-8", "surrogateescape"))
    if match is None:
        return None
    try:
        spec = spec_of(match)
    except StatusError:
        return None
    related, host = correlation_of(headers), header(headers, b"host")
    return Head(match[4], spec, int(length), content_type(headers), related, host)


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
    api: RestApi
    hosts: frozenset[str] | None
    _head: Head | None = None
    """The head of a request whose body is arriving."""
    _pieces: list[bytes]
    _missing = 0
    """Bytes of that body still to come; negative after surplus bytes."""
    _request: RequestExchange[Response] | None = None
    _early = b""
    """Bytes received while a request is running."""
    _is_last = False

    def data_received(self, data: bytes) -> None:
        if self._request is not None or self._early:
            if not self._takes(len(data)):
                return
            self._early += data
            self.flow.pause_reading()
        elif self._head is not None:
            self._take(self._head, data)
        elif (head := self._head_of(data)) is not None:
            if self._timer is not None:
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
        if (
            self._part is not RequestPart.NOTHING
            or self.flow.write_paused
            or self.transport.is_closing()
        ):
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
        most = self.api.options.max_body
        fits = most is None or head.length <= most
        return fits and is_host_allowed(head.host, self.hosts)

    def _is_answering(self) -> bool:
        """Whether a previous request still awaits its response."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _take(self, head: Head, data: bytes) -> None:
        """Add a piece of a body; answer the complete request."""
        if not self._takes(len(data)):
            return
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            if self._head is None:
                self._head, self._part = head, RequestPart.BODY
                self._time_the_rest()
            return
        if self._head is not None:
            self._stop_timer()
            self._head, self._part = None, RequestPart.NOTHING
        self._timed = RequestPart.NOTHING
        body = b"".join(self._pieces)
        self._pieces = []
        if self._missing < 0:
            body, self._early = body[: head.length], body[head.length :]
        options = self.api.options
        codec = CODECS[head.verb](options, head.verb, head.spec, body, head.content_type)
        request = self._request = RequestExchange(self.api.flow, codec, self._reply)
        request.begin(options.settings.timeout_s, head.correlation)

    def _reply(self, answer: Response | StatusError) -> None:
        self._request = None
        if isinstance(answer, StatusError):
            answer = error_response(answer)
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

    def _response(self, answer: Response) -> bytes:
        kind = answer.content_type
        return b"%b%b%bcontent-length: %d\r\n%b%b\r\n%b" % (
            STATUS_LINE[answer.status],
            b"" if kind is None else b"content-type: %b\r\n" % kind,
            b"connection: close\r\n" if self._is_last else b"",
            len(answer.body),
            _CORS if self.api.options.settings.cors else b"",
            b"".join([b"%b: %b\r\n" % each for each in answer.headers]),
            answer.body,
        )

    def _ends_after_earlier(self) -> bool:
        if self._request is not None:
            self._is_last, self._early = True, b""
            return True
        return self._head is None and super()._ends_after_earlier()

    def _may_answer(self) -> bool:
        return self._head is not None or super()._may_answer()

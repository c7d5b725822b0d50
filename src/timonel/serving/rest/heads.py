"""The heads of HTTP requests that can be answered directly. Pure.

A client sends the same head again and again, so what one says is kept.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import httptools

from timonel.serving.asgi import header
from timonel.serving.monitoring.observation import TraceParent
from timonel.serving.rest.http import content_type, trace_parent
from timonel.serving.rest.routes import Action, VersionTooLargeError, match
from timonel.serving.servables import ModelSpec
from timonel.serving.status import StatusError

END = b"\r\n\r\n"
MOST_BYTES = 2048
"""Heads that are longer are not looked at."""
_KEPT = 1024
_OTHERS = frozenset(
    {b"connection", b"content-encoding", b"expect", b"origin", b"transfer-encoding"}
)
"""Headers by which a request is anything else than one body after one head, as it is."""


class Head(NamedTuple):
    """A request to predict.

    Args:
        spec: The model.
        length: Bytes of the body.
        content_type: What the client says that the body is; empty if nothing.
        trace: The trace it belongs to.
        host: The ``Host`` header; empty if there is none.
    """

    spec: ModelSpec
    length: int
    content_type: str
    trace: TraceParent | None
    host: bytes = b""


@functools.lru_cache(_KEPT)
def read_head(text: bytes) -> Head | None:
    """Return what a head asks for; none if that is anything else than a plain prediction.

    Args:
        text: The request's line and headers, without the empty line after them.
    """
    found = _Found()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(text + END)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    headers = found.headers
    length = header(headers, b"content-length")
    is_plain = found.is_whole and parser.get_http_version() == "1.1" and bool(length)
    if not is_plain or any(n in _OTHERS and v.lower() != b"keep-alive" for n, v in headers):
        return None
    spec = _model(parser.get_method(), found.url)
    if spec is None:
        return None
    return Head(
        spec, int(length), content_type(headers), trace_parent(headers), header(headers, b"host")
    )


def _model(method: bytes, url: bytes) -> ModelSpec | None:
    """Return the model that is to predict; none if something else is asked for."""
    if method != b"POST" or not url.startswith(b"/") or b"#" in url:
        return None
    try:
        route = match("POST", url.decode("utf-8", "surrogateescape"))
    except (StatusError, VersionTooLargeError):
        return None
    return route.spec if route.action is Action.PREDICT else None


class _Found:
    """Collects what the parser finds."""

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

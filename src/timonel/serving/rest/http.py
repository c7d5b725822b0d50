"""What the applications of the REST port read of HTTP requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from timonel.serving.monitoring.observation import TraceParent
from timonel.serving.status import Code, StatusError

Headers = Iterable[tuple[bytes, bytes]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def body_of(receive: Receive) -> bytes:
    """Return a request's body once all of it is there.

    Raises:
        StatusError: The client went away before.
    """
    chunks = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise StatusError(Code.CANCELLED, "the client closed the connection")
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def content_type(headers: Headers) -> str:
    """Return what a request says that its body is; empty if nothing."""
    found = next((value for name, value in headers if name == b"content-type"), b"")
    return found.decode("latin-1")


def is_gzipped(headers: Headers) -> bool:
    """Tell whether a request says that its body is packed."""
    return any(name == b"content-encoding" and b"gzip" in value for name, value in headers)


def is_preflight(headers: Headers) -> bool:
    """Tell whether a browser asks for a page of another origin."""
    origin = next((value for name, value in headers if name == b"origin"), b"")
    return b"http://" in origin or b"https://" in origin


def trace_parent(headers: Headers) -> TraceParent | None:
    """Return the trace that a request belongs to, if it names one."""
    parent = state = None
    for name, value in headers:
        if name == b"traceparent":
            parent = value.decode("latin-1")
        elif name == b"tracestate":
            state = value.decode("latin-1")
    return None if parent is None else TraceParent(parent, state)

"""What the applications of the REST port read of HTTP requests."""

from __future__ import annotations

import time

from timonel.serving.access.policy import PRINCIPAL
from timonel.serving.asgi import Headers, Receive, header
from timonel.serving.core import RequestContext
from timonel.serving.monitoring.observation import Observation, TraceParent
from timonel.serving.status import Code, StatusError


def context_of(
    api: str, observation: Observation | None, timeout_s: float | None
) -> RequestContext:
    """Return what travels with a request that has arrived, and is to be answered in time."""
    return RequestContext(
        deadline=None if timeout_s is None else time.monotonic() + timeout_s,
        principal=PRINCIPAL.get(),
        entrypoint="REST",
        api=api,
        observation=observation,
    )


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
    return header(headers, b"content-type").decode("latin-1")


def is_preflight(headers: Headers) -> bool:
    """Tell whether a browser asks for a page of another origin."""
    origin = header(headers, b"origin")
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

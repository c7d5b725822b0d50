"""HTTP options, responses and header parsing for REST applications."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from timonel.serving.asgi import Headers, Receive, header
from timonel.serving.auth.policy import PRINCIPAL
from timonel.serving.inference import RequestContext
from timonel.serving.inference.observation import Observation, TraceParent
from timonel.serving.protocols.tfs_rest.response_body import encode_error
from timonel.serving.settings.dialect import TIMONEL, Dialect
from timonel.serving.status import Code, StatusError

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
CORS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"Content-Type"),
)
"""CORS headers that let pages of other origins read a response."""
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
_UNZIPPED_LIMIT: Final = 100 * 2**20


@dataclass(frozen=True)
class RestOptions:
    """Options of the REST server.

    Args:
        dialect: The response dialect.
        cors: Whether browsers may use the server from pages of other origins.
        timeout_s: Seconds from the arrival of a request to a ``DEADLINE_EXCEEDED`` error; None for
            no limit.
        check_method_names: Whether a signature must be declared for the method that uses it.
    """

    dialect: Dialect = TIMONEL
    cors: bool = False
    timeout_s: float | None = None
    check_method_names: bool = False


class Answer(NamedTuple):
    """An HTTP response without its length.

    Args:
        status: The HTTP status.
        body: The content.
        content_type: The content type; None to omit the header.
    """

    status: int
    body: bytes
    content_type: bytes | None = JSON


def error_answer(error: StatusError) -> Answer:
    """Convert an error to a response."""
    return Answer(HTTP_STATUS[error.code], encode_error(error.message))


def unexpected(error: Exception) -> StatusError:
    """Convert an unexpected exception to a status error."""
    return StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}")


def overdue() -> StatusError:
    """Return the error for a request that timed out."""
    return StatusError(Code.DEADLINE_EXCEEDED, "Timed out waiting for notification")


def context_of(
    api: str, observation: Observation | None, timeout_s: float | None
) -> RequestContext:
    """Create the context of a request that has arrived, with its deadline."""
    return RequestContext(
        deadline=None if timeout_s is None else time.monotonic() + timeout_s,
        principal=PRINCIPAL.get(),
        entrypoint="REST",
        api=api,
        observation=observation,
    )


async def body_of(receive: Receive) -> bytes:
    """Read the whole request body.

    Raises:
        StatusError: The client disconnected early.
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


def unzip(body: bytes) -> bytes:
    """Decompress gzip.

    Corrupt or too large data gives nothing, as in TensorFlow Serving.
    """
    stream = zlib.decompressobj(wbits=31)
    try:
        plain = stream.decompress(body, _UNZIPPED_LIMIT)
    except zlib.error:
        return b""
    return b"" if stream.unconsumed_tail or not stream.eof else plain


def content_type(headers: Headers) -> str:
    """Return the content type of a request's body; empty if absent."""
    return header(headers, b"content-type").decode("latin-1")


def is_preflight(headers: Headers) -> bool:
    """Whether the headers have an origin, as in a CORS preflight."""
    origin = header(headers, b"origin")
    return b"http://" in origin or b"https://" in origin


def trace_parent(headers: Headers) -> TraceParent | None:
    """Return the trace context of a request, if any."""
    parent = state = None
    for name, value in headers:
        if name == b"traceparent":
            parent = value.decode("latin-1")
        elif name == b"tracestate":
            state = value.decode("latin-1")
    return None if parent is None else TraceParent(parent, state)

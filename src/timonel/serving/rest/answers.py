"""What is answered over HTTP, and how errors are."""

from __future__ import annotations

from typing import NamedTuple

from timonel.serving.rest.encoding import encode_error
from timonel.serving.status import Code, StatusError

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
CORS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"Content-Type"),
)
"""Headers that let pages of other origins read an answer."""
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


class Answer(NamedTuple):
    """An HTTP response, but for its length.

    Args:
        status: The HTTP status.
        body: The content.
        content_type: What it is; none to leave that out.
    """

    status: int
    body: bytes
    content_type: bytes | None = JSON


def error_answer(error: StatusError) -> Answer:
    """Return the answer that tells of an error."""
    return Answer(HTTP_STATUS[error.code], encode_error(error.message))


def unexpected(error: Exception) -> StatusError:
    """Return what is told of a defect; it costs one request, not the server."""
    return StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}")

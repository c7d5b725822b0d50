"""Map errors to HTTP statuses and responses over REST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from timonel.serving.asgi import NOT_STARTED, Response
from timonel.serving.codec.writer import encode_error
from timonel.serving.status import Code, NotStartedError, StatusError

HTTP_STATUS: Final = {
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
_ASKS_FOR_KEY: Final = ((b"www-authenticate", b"Bearer"),)


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

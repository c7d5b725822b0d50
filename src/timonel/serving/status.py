"""Status codes, and the error that is sent to clients.

The codes are those of gRPC and TensorFlow. `StatusError` is not part of the tree in
`timonel.errors`: that tree is for callers of timonel, this error is for clients of a server.
"""

from __future__ import annotations

import copy
import logging
import re
from enum import IntEnum
from typing import Final

_LOG = logging.getLogger(__name__)


class Code(IntEnum):
    """Canonical status codes, with the numbers of gRPC and TensorFlow."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    # Enum's own is implemented in Python, and metrics look up codes for each request.
    __hash__ = int.__hash__


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
"""HTTP status of each code, as in TensorFlow Serving."""
TRANSIENT = frozenset(
    {
        Code.UNKNOWN,
        Code.DEADLINE_EXCEEDED,
        Code.RESOURCE_EXHAUSTED,
        Code.ABORTED,
        Code.INTERNAL,
        Code.UNAVAILABLE,
    }
)
"""Codes of failures that may be temporary, so worth a retry."""


_MAX_CHARACTERS = 4_000


_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/'\":,;]+/)+")
"""Folders of an absolute path, up to its last part."""


def without_folders(message: str) -> str:
    """Return a message for clients, whom paths of the server do not concern."""
    return _FOLDERS.sub(".../", message)


class StatusError(Exception):
    """A request or a load ended with a status other than OK."""

    def __init__(self, code: Code, message: str) -> None:
        if len(message) > _MAX_CHARACTERS:  # it quotes a name of a client or a model
            message = f"{message[:_MAX_CHARACTERS]}..."
        super().__init__(message)
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[StatusError], tuple[Code, str]]:
        return type(self), (self.code, self.message)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class NotStartedError(StatusError):
    """Nothing computes the request, so it may be sent to another server."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, message)

    def __reduce__(self) -> tuple[type[NotStartedError], tuple[str]]:  # type: ignore[override]
        return type(self), (self.message,)


class HungError(NotStartedError):
    """A version hangs until its process is restarted."""


def invalid_argument(message: str) -> StatusError:
    """Return an INVALID_ARGUMENT error: the request cannot succeed unchanged."""
    return StatusError(Code.INVALID_ARGUMENT, message)


def not_found(message: str) -> StatusError:
    """Return a NOT_FOUND error."""
    return StatusError(Code.NOT_FOUND, message)


def as_status(error: BaseException, what: str, otherwise: Code = Code.INTERNAL) -> StatusError:
    """Return the status of what failed; log unexpected errors, whose code is ``otherwise``.

    A copy: the frames of a traceback refer to the request, and keep it until a full collection.
    """
    if isinstance(error, StatusError):
        return copy.copy(error)
    _LOG.error("%s failed", what, exc_info=error)
    return StatusError(otherwise, f"{type(error).__name__}: {error}")

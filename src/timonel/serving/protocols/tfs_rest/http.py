"""URLs, headers and responses of TensorFlow Serving's REST API.

URLs match by TensorFlow Serving's patterns. As there, the matched text includes the query string:
``/v1/models/m?x=1`` names a model ``m?x=1``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import unquote

from timonel.serving.asgi import Headers, Receive, header
from timonel.serving.gunzip import Gunzip
from timonel.serving.inference.context import Correlation
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.tfs_rest.response_body import encode_error
from timonel.serving.settings.server import COMPARISON_HEADER
from timonel.serving.status import Code, StatusError, invalid_argument

PREFIX = "/v1/"
_FLAGS = re.IGNORECASE | re.ASCII
_VERSION = r"(?:/versions/(\d+)|/labels/([^/:]+))?"
_COMPUTE = re.compile(rf"/v1/models/([^/:]+){_VERSION}:(classify|regress|predict)\Z", _FLAGS)
_READ = re.compile(rf"/v1/models(?:/([^/:]+))?{_VERSION}(/metadata)?\Z", _FLAGS)
_CONFIG = re.compile(r"/v1/config(?:\?format=(json|text))?\Z", _FLAGS)
_INT64_DIGITS = 19
_KEPT, _KEPT_LENGTH = 256, 256
_COMPARISON = COMPARISON_HEADER.encode()


class RestAction(Enum):
    """Action of a REST request."""

    PREDICT = "predict"
    CLASSIFY = "classify"
    REGRESS = "regress"
    STATUS = "status"
    METADATA = "metadata"
    LIST = "list"
    CONFIG = "config"


COMPUTING = frozenset({RestAction.PREDICT, RestAction.CLASSIFY, RestAction.REGRESS})
"""Actions that run a model."""
_COMPUTING = {action.value: action for action in COMPUTING}


@dataclass(frozen=True)
class Route:
    """An action and its model.

    Args:
        action: The action.
        spec: The model; without a name for `RestAction.LIST` and `RestAction.CONFIG`.
        as_text: Whether to answer with a text proto instead of JSON.
    """

    action: RestAction
    spec: ModelSpec
    as_text: bool = False


class VersionTooLargeError(ValueError):
    """A version number exceeds 64 bits."""


def is_rest(target: str) -> bool:
    """Whether a percent-encoded path belongs to TensorFlow Serving's API."""
    return target[: len(PREFIX)].lower() == PREFIX


def match(method: str, target: str) -> Route:
    """Match a request below ``/v1/`` to its route.

    Args:
        method: The HTTP method.
        target: The path with its query string, still percent-encoded.

    Raises:
        StatusError: The request matches no route.
        VersionTooLargeError: The request matches, but its version exceeds 64 bits.
    """
    # Most requests are for a few targets.
    return _kept(method, target) if len(target) <= _KEPT_LENGTH else _match(method, target)


def _match(method: str, target: str) -> Route:
    if method == "POST" and (found := _COMPUTE.match(target)):
        action = _COMPUTING.get(found[4])
        spec = _spec(found[1], found[2], found[3])
        if action is not None:
            return Route(action, spec)
    elif method == "GET" and (found := _READ.match(target)):
        spec = _spec(found[1] or "", found[2], found[3])
        if spec.name:
            return Route(RestAction.METADATA if found[4] else RestAction.STATUS, spec)
        if found.end() == len("/v1/models"):
            return Route(RestAction.LIST, spec)
        raise missing_name()
    elif method == "GET" and (found := _CONFIG.match(target)):
        return Route(RestAction.CONFIG, ModelSpec(""), as_text=(found[1] or "").lower() == "text")
    raise malformed(method, target)


_kept = functools.lru_cache(_KEPT)(_match)


def malformed(method: str, target: str) -> StatusError:
    """Return the error for a request without a route."""
    return invalid_argument(f"Malformed request: {method} {target}")


def missing_name() -> StatusError:
    """Return the error for a request without a model name."""
    return invalid_argument("Missing model name in request.")


def _spec(name: str, version: str | None, label: str | None) -> ModelSpec:
    number = None
    if version is not None:
        digits = version.lstrip("0") or "0"
        if len(digits) > _INT64_DIGITS or int(digits) >= 2**63:
            raise VersionTooLargeError(f"Failed to convert version: {version} to numeric.")
        number = int(digits)
    return ModelSpec(_decoded(name), number, _decoded(label) if label else None)


def _decoded(text: str) -> str:
    return unquote(text)


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
TIMED_OUT: Final = "Timed out waiting for notification"
"""Message for a request that has timed out: TensorFlow Serving's."""
_UNZIPPED_LIMIT: Final = 100 * 2**20


class RestResponse(NamedTuple):
    """An HTTP response without its length.

    Args:
        status: The HTTP status.
        body: The content.
        content_type: The content type; None to omit the header.
    """

    status: int
    body: bytes
    content_type: bytes | None = JSON


def error_answer(error: StatusError) -> RestResponse:
    """Convert an error to a response."""
    return RestResponse(HTTP_STATUS[error.code], encode_error(error.message))


def unexpected(error: Exception) -> StatusError:
    """Convert an unexpected exception to a status error."""
    return StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}")


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
    gunzip, slices, left = Gunzip(), [], _UNZIPPED_LIMIT
    for piece in gunzip.feed(body):
        slices.append(piece)
        left -= len(piece)
        if left < 0:
            return b""
    return b"".join(slices) if gunzip.is_complete else b""


def content_type(headers: Headers) -> str:
    """Return the content type of a request's body; empty if absent."""
    return header(headers, b"content-type").decode("latin-1")


def is_preflight(headers: Headers) -> bool:
    """Whether the headers have an origin, as in a CORS preflight."""
    origin = header(headers, b"origin")
    return b"http://" in origin or b"https://" in origin


def correlation_of(headers: Headers) -> Correlation | None:
    """Return the headers that relate a request to others, if any."""
    parent = state = comparison = None
    for name, value in headers:
        if name == b"traceparent":
            parent = value.decode("latin-1")
        elif name == b"tracestate":
            state = value.decode("latin-1")
        elif name == _COMPARISON:
            comparison = value.decode("latin-1")
    if parent is None and comparison is None:
        return None
    return Correlation(parent, state, comparison)

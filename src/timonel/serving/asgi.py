"""ASGI types and header helpers for the REST applications."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


def header(headers: Headers, wanted: bytes) -> bytes:
    """Return the first value of a header with a lower-case name.

    Returns:
        Empty bytes if the header is missing.
    """
    for name, value in headers:
        if name == wanted:
            return value
    return b""


def is_gzipped(headers: Headers) -> bool:
    """Return whether a request's body is declared as gzip-compressed."""
    return any(name == b"content-encoding" and b"gzip" in value for name, value in headers)

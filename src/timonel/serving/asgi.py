"""ASGI types and header helpers for the REST applications."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
_WATCH_AFTER_S = 0.1
"""Delay before a task waits for a client's disconnection.

A task for each quick request would cost more than it saves.
"""


def header(headers: Headers, name: bytes) -> bytes:
    """Return the first value of a header with a lower-case name.

    Returns:
        Empty bytes if the header is missing.
    """
    for key, value in headers:
        if key == name:
            return value
    return b""


def is_gzipped(headers: Headers) -> bool:
    """Return whether a request's body is declared as gzip-compressed."""
    return any(name == b"content-encoding" and b"gzip" in value for name, value in headers)


@contextlib.contextmanager
def on_disconnect(receive: Receive, cancel: Callable[[], object]) -> Iterator[None]:
    """Call ``cancel`` if the client disconnects during the block.

    Args:
        receive: The request's channel, after its body has been read.
        cancel: Gives up the request.
    """

    async def watch() -> None:
        if (await receive())["type"] == "http.disconnect":
            cancel()

    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    timer = loop.call_later(_WATCH_AFTER_S, lambda: tasks.append(loop.create_task(watch())))
    try:
        yield
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()

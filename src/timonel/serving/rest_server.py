"""REST's place in a server: its port, its start and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn

from timonel.errors import ServingError
from timonel.serving.ports import bind, refusal
from timonel.serving.settings import ServerSettings

_LOG = logging.getLogger(__name__)
_KEEP_ALIVE_S = 75
_GONE_S = 60
_PROBES = 4
_ABORTED_S = 1.0
_ANY_ADDRESS_V6, _ANY_ADDRESS = "::", "0.0.0.0"  # noqa: S104 - where the settings say so


def bind_rest(settings: ServerSettings) -> socket.socket | None:
    """Take the REST port; none if it is turned off, or cannot be had and need not be.

    Raises:
        ServingError: It cannot be taken.
    """
    if settings.rest_port is None:
        return None
    host = settings.rest_host or settings.host
    try:
        return _noticing_who_is_gone(_bind(host, settings.rest_port))
    except ServingError as error:
        if not settings.rest_is_optional:
            raise
        _LOG.error("Failed to start HTTP Server at %s:%s: %s", host, settings.rest_port, error)
        return None


def _bind(host: str, port: int) -> socket.socket:
    try:
        return bind(host, port, "REST")
    except ServingError:
        if host != _ANY_ADDRESS_V6:
            raise
        # A machine without IPv6.
        return bind(_ANY_ADDRESS, port, "REST")


def _noticing_who_is_gone(bound: socket.socket) -> socket.socket:
    """Have the system close connections whose other side is silent or takes nothing.

    What is set here holds for every connection that is accepted. Without it one whose client
    vanished, without a word, in the middle of a body would stay for ever, as would an answer that
    nobody reads.
    """
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _GONE_S),
        ("TCP_KEEPINTVL", _GONE_S // _PROBES),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _GONE_S * 1000),
    ):
        # Not every system has each of them.
        if hasattr(socket, name):
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return bound


class RestServer:
    """An HTTP server that is started and stopped inside one event loop.

    Args:
        app: The ASGI application.
        bound: The socket to listen on.
        grace_s: Time that requests under way have at the end.
        options: More of uvicorn's options.
    """

    def __init__(
        self, app: Any, bound: socket.socket, grace_s: float, options: Mapping[str, Any]
    ) -> None:
        self._bound = bound
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                interface="asgi3",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, round(grace_s)),
                **options,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer.

        Raises:
            ServingError: It ended at once.
        """
        task = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        while not self._server.started:
            if task.done():
                raise self._failure(task)
            await asyncio.sleep(0.005)
        self._task = task

    def _failure(self, task: asyncio.Task[None]) -> ServingError:
        error = task.exception()
        if isinstance(error, OSError):
            # Another server took the same port while this one loaded its models, and listened
            # first.
            host, port = self._bound.getsockname()[:2]
            return refusal(host, port, "REST", error)
        if error is not None:
            raise error
        return ServingError("REST ended as soon as it had started")

    def refuse(self) -> None:
        """Take no new connections."""
        self._server.should_exit = True

    async def stop(self) -> None:
        """Take no new connections, and wait for the requests under way as long as they may take."""
        self.refuse()
        if self._task is None:
            return
        await self._task
        # Who is still there has taken too long: uvicorn ends its tasks, and no more than them.
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABORTED_S):
                while self._server.server_state.connections:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0)


class _QuietServer(uvicorn.Server):
    """Uvicorn, with signals left to us: two servers end together here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

"""The HTTP server for REST: bind its port, start and stop it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn

from timonel.errors import ServingError
from timonel.serving.ports import bind, bind_unix, refusal, socket_path
from timonel.serving.settings.server import ServerSettings

_LOG = logging.getLogger(__name__)
_KEEP_ALIVE_S = 75
_DEAD_AFTER_S = 60
_PROBES = 4
_ABORT_S = 1.0
_ANY_ADDRESS_V6, _ANY_ADDRESS = "::", "0.0.0.0"  # noqa: S104 - where the settings say so


def bind_rest(settings: ServerSettings) -> socket.socket | None:
    """Bind the REST port, unless REST is off.

    Returns:
        None if REST is off, or if it is optional and the port is unavailable.
    """
    if settings.rest_port is None:
        return None
    host = settings.rest_host or settings.host
    if (path := socket_path(host, "http")) is not None:
        return bind_unix(path)
    try:
        return _detecting_dead_clients(_bind(host, settings.rest_port))
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
        # Fall back to IPv4 on machines without IPv6.
        return bind(_ANY_ADDRESS, port, "REST")


def _detecting_dead_clients(bound: socket.socket) -> socket.socket:
    """Have the system close connections to unresponsive clients.

    Accepted connections inherit these options. Without them, a connection would stay open forever
    if its client vanished in the middle of a body, or never read the response.
    """
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _DEAD_AFTER_S),
        ("TCP_KEEPINTVL", _DEAD_AFTER_S // _PROBES),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _DEAD_AFTER_S * 1000),
    ):
        # Not every system has all of these options.
        if hasattr(socket, name):
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return bound


class RestServer:
    """An HTTP server that is started and stopped inside one event loop."""

    def __init__(
        self, app: Any, bound: socket.socket, grace_s: float, options: Mapping[str, Any]
    ) -> None:
        logging.getLogger("uvicorn.error").addFilter(_is_relevant)
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
        """Start serving."""
        task = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        while not self._server.started:
            if task.done():
                raise self._failure(task)
            await asyncio.sleep(0.005)
        self._task = task

    def _failure(self, task: asyncio.Task[None]) -> ServingError:
        error = task.exception()
        if isinstance(error, OSError):
            # Another server took the same port and listened first, while this one loaded its
            # models.
            host, port = self._bound.getsockname()[:2]
            return refusal(host, port, "REST", error)
        if error is not None:
            raise error
        return ServingError("The REST server stopped right after its start.")

    def refuse(self) -> None:
        """Stop accepting new connections."""
        self._server.should_exit = True

    async def stop(self) -> None:
        """Stop accepting connections, and wait for in-flight requests within the grace period."""
        self.refuse()
        if self._task is None:
            return
        await self._task
        # The remaining clients exceeded the grace period: uvicorn cancels their tasks, but does not
        # close their connections.
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_S):
                while self._server.server_state.connections:  # noqa: ASYNC110 - uvicorn has no event for this
                    await asyncio.sleep(0)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Drop uvicorn's traceback of a request that is cancelled after the grace period."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is not asyncio.CancelledError


class _QuietServer(uvicorn.Server):
    """Uvicorn without signal handlers, as REST and gRPC shut down together."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

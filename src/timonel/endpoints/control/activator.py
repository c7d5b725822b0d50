"""Activator: delays requests to versions without a ready replica.

Envoy keeps such a request, its body included, and asks here whether it may pass (external
authorization over a Unix socket). The answer comes once there is a replica. No byte of a body
passes through this process; Envoy's flow control limits what it buffers for each client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn

from timonel.endpoints.gateway.parts import REFUSED, SERVICE_HEADER, TIMED_OUT

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_Answer = tuple[int, str]
"""Status, and the reason if it is an error."""

_UNKNOWN = "no such version of the endpoint"
_ENDING = "this gateway ends"
_RETRY_AFTER_S = 1
_BACKLOG = 4096
_CHECK_S = 0.5

logger = logging.getLogger(__name__)


class Activator:
    """ASGI application that answers once a version has a ready replica."""

    def __init__(self, on_hold: Callable[[str], None]) -> None:
        self._on_hold = on_hold
        self._limits: Mapping[str, tuple[int, float]] = {}
        self._is_configured = asyncio.Event()
        self._is_ending = False
        self._failures: Mapping[str, str] = {}
        self._waiting: dict[str, asyncio.Future[_Answer]] = {}
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> Mapping[str, int]:
        """Requests that wait, by name of the service."""
        return +self._held

    def configure(
        self, limits: Mapping[str, tuple[int, float]], failures: Mapping[str, str] | None = None
    ) -> None:
        """Set the known services; requests to others are refused, also those that wait.

        Before the first call no service is known: requests wait for it.

        Args:
            limits: Most requests that wait at once, and longest wait in seconds, by service.
            failures: Why no replica can start, by service; its requests do not wait.
        """
        self._limits, self._failures = limits, failures or {}
        self._apply_refusals()

    def close(self) -> None:
        """Refuse all requests: this gateway ends, and there are others."""
        self._is_ending = True
        self._apply_refusals()

    def release(self, service: str) -> None:
        """Let the waiting requests of a service pass."""
        self._end(service, (200, ""))

    def _apply_refusals(self) -> None:
        self._is_configured.set()
        for service in [*self._waiting]:
            if (reason := self._refusal(service)) is not None:
                self._end(service, (REFUSED, reason))

    def _refusal(self, service: str) -> str | None:
        if self._is_ending:
            return _ENDING
        if service not in self._limits:
            return _UNKNOWN
        return self._failures.get(service)

    def _end(self, service: str, answer: _Answer) -> None:
        waiting = self._waiting.pop(service, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer a question of Envoy: 200 lets the request pass, others are its response."""
        if scope["type"] != "http":
            return
        await self._is_configured.wait()
        headers = {key.decode("latin-1"): value for key, value in scope["headers"]}
        service = headers.get(SERVICE_HEADER, b"").decode("latin-1")
        if (reason := self._refusal(service)) is not None:
            await _answer(send, REFUSED, reason)
            return
        most, longest_s = self._limits[service]
        if self._held[service] >= most:
            await _answer(send, REFUSED, f"{most} requests wait for a replica already")
            return
        self._held[service] += 1
        try:
            answer = await self._wait(service, longest_s, receive)
        finally:
            self._held[service] -= 1
        if answer is not None:  # the client has not gone
            await _answer(send, *answer)

    async def _wait(self, service: str, longest_s: float, receive: _Receive) -> _Answer | None:
        """Return the answer; None if the client has gone."""
        loop = asyncio.get_running_loop()
        ready = self._waiting.setdefault(service, loop.create_future())
        self._on_hold(service)
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            done, _ = await asyncio.wait(
                (ready, gone), timeout=longest_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            gone.cancel()
        if ready in done:
            return ready.result()
        return None if gone in done else (TIMED_OUT, f"no replica got ready within {longest_s:g} s")


async def _disconnected(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: _Send, status: int, error: str) -> None:
    body = json.dumps({"error": error}).encode() if error else b""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == REFUSED:
        headers.append((b"retry-after", b"%d" % _RETRY_AFTER_S))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def listen(app: Activator, path: Path) -> None:
    """Serve the activator on a Unix socket until cancelled; create it again if it disappears."""
    async with asyncio.TaskGroup() as servers:
        while True:
            sock = _bind(path)
            if sock is not None:
                created = _inode(path)
                # Envoy keeps its connections to earlier servers.
                servers.create_task(_serve(app, sock))
                while _inode(path) == created:  # noqa: ASYNC110 - a file, not an event
                    await asyncio.sleep(_CHECK_S)
                logger.warning("%s has disappeared and is created again", path)
            await asyncio.sleep(_CHECK_S)


def _bind(path: Path) -> socket.socket | None:
    """Return a socket in place of that of an earlier process; None without the folder."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        aside.unlink(missing_ok=True)
        sock.bind(str(aside))
        sock.listen(_BACKLOG)
        aside.chmod(0o600)
        aside.replace(path)
    except OSError as error:
        sock.close()
        logger.error("cannot listen at %s: %s", path, error.strerror)  # noqa: TRY400
        return None
    return sock


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


async def _serve(app: Activator, sock: socket.socket) -> None:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        # Envoy closes connections; it could use one that is being closed here.
        timeout_keep_alive=86_400,
        backlog=_BACKLOG,
        http="httptools",
    )
    with sock:
        await _Server(config).serve([sock])


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()

"""The page of metrics in front of a REST application; any verb gets it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Executor

from timonel.serving.asgi import App, Receive, Scope, Send
from timonel.serving.monitoring.exposition import CONTENT_TYPE
from timonel.serving.monitoring.monitor import Monitor


class MetricsApp:
    """Answers requests for one path, and hands all others on.

    Args:
        app: Answers the others.
        monitor: Knows the metrics.
        path: Where they are.
        pool: Where the page is written, which takes milliseconds; none takes the event loop's own.
    """

    def __init__(self, app: App, monitor: Monitor, path: str, pool: Executor | None = None) -> None:
        self._app = app
        self._monitor = monitor
        self._path = path
        self._pool = pool

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] != self._path:
            return self._app(scope, receive, send)
        return self._send(scope, send)

    async def _send(self, scope: Scope, send: Send) -> None:
        status, body = await self._answer(scope["query_string"])
        headers = [(b"content-type", CONTENT_TYPE), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )

    async def _answer(self, query: bytes) -> tuple[int, bytes]:
        if query:
            # There, the path of a request includes its query.
            asked = f"{self._path}?{query.decode('latin-1')}"
            return 400, f"Unexpected path: {asked}. Should be {self._path}".encode()
        loop = asyncio.get_running_loop()
        return 200, await loop.run_in_executor(self._pool, self._monitor.page)

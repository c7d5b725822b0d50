"""The page of metrics in front of a REST application; any verb gets it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Executor

from timonel.serving.asgi import App, Receive, Scope, Send, header
from timonel.serving.telemetry.monitor import Monitor


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
        status, body, kind = await self._answer(scope)
        headers = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"vary", b"accept"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )

    async def _answer(self, scope: Scope) -> tuple[int, bytes, str]:
        if query := scope["query_string"]:
            # There, the path of a request includes its query.
            asked = f"{self._path}?{query.decode('latin-1')}"
            text = f"Unexpected path: {asked}. Should be {self._path}"
            return 400, text.encode(), "text/plain"
        accept = header(scope["headers"], b"accept").decode("latin-1")
        loop = asyncio.get_running_loop()
        return 200, *await loop.run_in_executor(self._pool, self._monitor.page, accept)

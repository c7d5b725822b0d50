"""ASGI application that puts the metrics page before a REST application.

It answers any HTTP method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Executor

from timonel.serving.asgi import App, Receive, Scope, Send, header
from timonel.serving.telemetry.monitor import Monitor


class MetricsApp:
    """Serves metrics on one path, and forwards all other requests.

    Args:
        app: Handles the other requests.
        monitor: The source of the metrics.
        path: The path of the page.
        pool: Thread pool that renders the page, which takes milliseconds; None for the event loop's
            default.
    """

    def __init__(self, app: App, monitor: Monitor, path: str, pool: Executor | None = None) -> None:
        self._app = app
        self._monitor = monitor
        self._path = path
        self._pool = pool

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle a request."""
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
            # TensorFlow Serving compares the path including its query.
            asked = f"{self._path}?{query.decode('latin-1')}"
            text = f"Unexpected path: {asked}. Should be {self._path}"
            return 400, text.encode(), "text/plain"
        accept = header(scope["headers"], b"accept").decode("latin-1")
        loop = asyncio.get_running_loop()
        return 200, *await loop.run_in_executor(self._pool, self._monitor.page, accept)

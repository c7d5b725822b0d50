"""Health of a control plane, for its engine, and what its other replicas ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping

from timonel.serving.asgi import Receive, Scope, Send

HELD_PATH = "/held"
ADMIN_PATH = "/envoy"
_STATS = "/stats"


class Health:
    """ASGI application that says whether this process works, and which requests it holds.

    Args:
        held: Requests that wait for a replica, by service.
        admin: Returns Envoy's answer to a request for statistics; None without one.
    """

    def __init__(
        self,
        is_ready: Callable[[], bool],
        held: Callable[[], Mapping[str, int]],
        admin: Callable[[str], bytes | None],
    ) -> None:
        self._is_ready = is_ready
        self._held = held
        self._admin = admin

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        status, body = 404, b""
        if scope["path"] == "/livez":
            status = 200
        elif scope["path"] == "/readyz":
            status = 200 if self._is_ready() else 503
        elif scope["path"] == HELD_PATH:
            status, body = 200, json.dumps(dict(self._held())).encode()
        elif scope["path"] == ADMIN_PATH + _STATS:
            query = scope["query_string"].decode("latin-1")
            found = await asyncio.to_thread(self._admin, f"{_STATS}?{query}")
            status, body = (503, b"") if found is None else (200, found)
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def parse_held(body: bytes | None) -> dict[str, int]:
    """Return the requests that another control plane holds, by service; none if unknown."""
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        return {}
    return {str(name): int(count) for name, count in found.items()}

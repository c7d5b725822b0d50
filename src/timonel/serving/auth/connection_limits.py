"""HTTP connections with limits on count, header size and receive time.

Uvicorn with httptools limits none of these.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from enum import Enum
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from timonel.serving.auth.http_parser import PatientParser
from timonel.serving.settings.auth import LimitSettings
from timonel.serving.settings.server import NOT_STARTED_HEADER

_FREE_BYTES = 64 * 2**10
"""Bytes that each connection may always take."""
_LARGE_HEAD = "the request's headers are too large"


def http_protocol(limits: LimitSettings) -> type[HttpToolsProtocol]:
    """Return a uvicorn protocol class with limits, for ``uvicorn.Config(http=...)``."""
    parts = {"limits": limits, "budget": _Budget(limits.max_receiving)}
    return type("BoundedHttp", (BoundedHttp,), parts)


class _Budget:
    """Bytes of the requests of all connections."""

    def __init__(self, most: int | None) -> None:
        self.most = math.inf if most is None else most
        self.taken = 0


class RequestPart(Enum):
    """The part of a request that is being received."""

    NOTHING = 0
    HEAD = 1
    BODY = 2


class BoundedHttp(HttpToolsProtocol):
    """An HTTP connection with limits. Protected members are for subclasses."""

    limits: LimitSettings
    budget: _Budget
    _held = 0
    """Bytes of the budget that this connection has taken."""
    _part = RequestPart.NOTHING
    _timed = RequestPart.NOTHING
    _head_size = 0
    _refusal: tuple[int, str] | None = None
    _timer: asyncio.TimerHandle | None = None
    _answered: RequestResponseCycle | None = None
    _is_ending = False
    """Whether the connection closes after the responses to earlier requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or reject it if too many are open."""
        super().connection_made(transport)
        self.parser = PatientParser(self)
        most = self.limits.max_connections
        if most is not None and len(self.connections) > most:
            self._refuse(503, "too many connections")
            return
        # Until the first byte arrives, the connection is idle as between two requests.
        self._start_timer(self.timeout_keep_alive, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the running request of the disconnection."""
        self._stop_timer()
        self._give_back()
        if self._answered is not None and self._answered is not self.cycle:
            # With pipelined requests, uvicorn notifies only the last one.
            self._answered.disconnected = True
            self._answered.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and enforce the limits."""
        if self.transport.is_closing() or self._is_ending:
            return
        if not self._is_dropped() and not self._takes(len(data)):
            return
        if self._part is RequestPart.NOTHING:
            self._stop_timer()
            self._part = RequestPart.HEAD
        if self._part is RequestPart.HEAD:
            self._head_size += len(data)
        super().data_received(data)
        if self._part is RequestPart.HEAD and self._head_size > self.limits.max_head:
            self._refuse(431, _LARGE_HEAD)
        # Most requests are complete by now and have needed no timer.
        if self._part is not self._timed:
            self._time_the_rest()

    def on_message_begin(self) -> None:
        """Record the start of a request."""
        super().on_message_begin()
        self._part = RequestPart.HEAD
        # A pipelined request has its own time limit.
        self._timed = RequestPart.NOTHING

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, but not the trailers of a body, which have no use and no limit."""
        if self._part is not RequestPart.BODY:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start answering a request, unless its head is too large."""
        size = len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers])
        if size > self.limits.max_head:
            self._refusal = (431, _LARGE_HEAD)
            raise ValueError(_LARGE_HEAD)
        if self.parser.should_upgrade():
            return  # it comes again without the offer
        self._part = RequestPart.BODY
        self._head_size = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Record the end of a request."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._part = RequestPart.NOTHING

    def on_response_complete(self) -> None:
        """Go on with the next request of the connection."""
        self._give_back()
        super().on_response_complete()

    def _is_dropped(self) -> bool:
        """Whether a body still arrives whose request has been answered."""
        return self._part is RequestPart.BODY and self.cycle.response_complete

    def _takes(self, size: int) -> bool:
        """Take received bytes from the budget; refuse the request if that is exhausted."""
        self._held += size
        self.budget.taken += size
        if self.budget.taken <= self.budget.most or self._held <= _FREE_BYTES:
            return True
        if self._held > self.budget.most:
            self._refuse(413, "more bytes than --max-receiving allows for all requests")
        else:
            self._refuse(503, "too many bytes of requests at once")
        return False

    def _give_back(self) -> None:
        self.budget.taken -= self._held
        self._held = 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Reject invalid HTTP."""
        self._refuse(*(self._refusal or (400, msg)))

    def _time_the_rest(self) -> None:
        if self._is_ending or self.transport.is_closing():
            return
        self._stop_timer()
        self._timed = self._part
        if self._part is RequestPart.HEAD:
            self._start_timer(self.limits.head_s, self._too_slow)
        elif self._part is RequestPart.BODY and self.limits.body_s is not None:
            self._start_timer(self.limits.body_s, self._too_slow)

    def _refuse(self, status: int, text: str) -> None:
        self._stop_timer()
        if self.transport.is_closing() or self._ends_after_earlier():
            return
        if self._may_answer():
            self.transport.write(_answer(status, text))
        self.transport.close()

    def _may_answer(self) -> bool:
        """Whether no response to this request has started."""
        return self._part is not RequestPart.BODY or not self.cycle.response_started

    def _ends_after_earlier(self) -> bool:
        """Whether earlier requests await responses, after which the connection closes."""
        if self._part is RequestPart.BODY:
            if not self.pipeline:
                return False
            # The refused request, which must not start.
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._answered  # type: ignore[assignment]
        last: RequestResponseCycle | None = self.cycle
        if last is None or last.response_complete:
            return False
        last.keep_alive = False
        self._is_ending = True
        return True

    def _start_timer(self, after_s: float, then: Callable[[], None]) -> None:
        self._timer = self.loop.call_later(after_s, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._refuse(408, "the request took too long to arrive")

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def _answer(status: int, text: str) -> bytes:
    body = json.dumps({"error": text}).encode()
    mark = f"{NOT_STARTED_HEADER}: 1\r\n".encode() if status == 503 else b""
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
    return STATUS_LINE[status] + mark + head + str(len(body)).encode() + b"\r\n\r\n" + body

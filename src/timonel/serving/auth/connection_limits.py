"""HTTP connections with limits on count, header size and receive time.

Uvicorn with httptools limits none of these.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from enum import Enum
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from timonel.serving.auth.asgi import CERTIFICATE
from timonel.serving.auth.http_parser import PatientParser
from timonel.serving.settings.auth import LimitSettings

_LARGE_HEAD = "the request's headers are too large"


def http_protocol(limits: LimitSettings) -> type[HttpToolsProtocol]:
    """Return a uvicorn protocol class with limits, for ``uvicorn.Config(http=...)``."""
    return type("BoundedHttp", (BoundedHttp,), {"limits": limits})


class Part(Enum):
    """The part of a request that is being received."""

    NOTHING = 0
    HEAD = 1
    BODY = 2


class BoundedHttp(HttpToolsProtocol):
    """An HTTP connection with limits. Protected members are for subclasses."""

    limits: LimitSettings
    _part = Part.NOTHING
    _timed = Part.NOTHING
    _head_size = 0
    _refusal: tuple[int, str] | None = None
    _timer: asyncio.TimerHandle | None = None
    _names: tuple[str, ...] = ()
    _answered: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or reject it if too many are open."""
        super().connection_made(transport)
        self.parser = PatientParser(self)
        most = self.limits.max_connections
        if most is not None and len(self.connections) > most:
            self._refuse(503, "too many connections")
            return
        self._names = certificate_names(transport.get_extra_info("peercert") or {})
        # Until the first byte arrives, the connection is idle as between two requests.
        self._start_timer(self.timeout_keep_alive, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the running request of the disconnection."""
        self._stop_timer()
        if self._answered is not None and self._answered is not self.cycle:
            # With pipelined requests, uvicorn notifies only the last one.
            self._answered.disconnected = True
            self._answered.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and enforce the limits."""
        if self.transport.is_closing():
            return
        if self._part is Part.NOTHING:
            self._stop_timer()
            self._part = Part.HEAD
        if self._part is Part.HEAD:
            self._head_size += len(data)
        super().data_received(data)
        if self._part is Part.HEAD and self._head_size > self.limits.max_head:
            self._refuse(431, _LARGE_HEAD)
        # Most requests are complete by now and have needed no timer.
        if self._part is not self._timed and not self.transport.is_closing():
            self._time_the_rest()

    def on_message_begin(self) -> None:
        """Record the start of a request."""
        super().on_message_begin()
        self._part = Part.HEAD
        # A pipelined request has its own time limit.
        self._timed = Part.NOTHING
        if self._names:
            self.scope[CERTIFICATE] = self._names  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        """Start answering a request, unless its head is too large."""
        size = len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers])
        if size > self.limits.max_head:
            self._refusal = (431, _LARGE_HEAD)
            raise ValueError(_LARGE_HEAD)
        if self.parser.should_upgrade():
            return  # it comes again without the offer
        self._part = Part.BODY
        self._head_size = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Record the end of a request."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._part = Part.NOTHING

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Reject invalid HTTP."""
        self._refuse(*(self._refusal or (400, msg)))

    def _time_the_rest(self) -> None:
        self._stop_timer()
        self._timed = self._part
        if self._part is Part.HEAD:
            self._start_timer(self.limits.head_s, self._too_slow)
        elif self._part is Part.BODY and self.limits.body_s is not None:
            self._start_timer(self.limits.body_s, self._too_slow)

    def _refuse(self, status: int, text: str) -> None:
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self._may_answer():
            self.transport.write(_answer(status, text))
        self.transport.close()

    def _may_answer(self) -> bool:
        """Whether this request is unanswered and earlier responses are complete."""
        if self.cycle is None:
            return True
        if self._part is Part.BODY:
            return not self.cycle.response_started
        return self.cycle.response_complete

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
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
    return STATUS_LINE[status] + head + str(len(body)).encode() + b"\r\n\r\n" + body


def certificate_names(certificate: dict[str, Any]) -> tuple[str, ...]:
    """Return the names in a verified certificate: common name, then alternative names.

    Args:
        certificate: The result of `ssl.SSLSocket.getpeercert`; empty for none.
    """
    subject = [
        value
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    others = [value for _, value in certificate.get("subjectAltName", ())]
    return tuple(dict.fromkeys([*subject, *others]))

"""HTTP parser that ignores offers to change the protocol, such as ``Upgrade: h2c`` of Java clients.

A server may ignore an ``Upgrade`` (RFC 9110, 7.8). httptools instead stops after the head, and the
body is lost.
"""

from __future__ import annotations

from typing import Protocol

import httptools

_OFFER = frozenset({b"connection", b"upgrade", b"http2-settings"})


class HeadReceiver(Protocol):
    """Receiver of a request's parts, with the methods that httptools calls."""

    url: bytes
    headers: list[tuple[bytes, bytes]]


class PatientParser:
    """`httptools.HttpRequestParser` that goes on after an offer, without its headers.

    The receiver gets the same request twice: first with `should_upgrade`, when it must not answer,
    then without.
    """

    def __init__(self, receiver: HeadReceiver) -> None:
        self._receiver = receiver
        self._parser = self._make()

    def feed_data(self, data: bytes) -> None:
        """Parse bytes."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                if self.get_method() == b"CONNECT":
                    # For proxies; to the parser each one changes the protocol, also without offer.
                    raise httptools.HttpParserError("a server has no CONNECT") from offer
                (consumed,) = offer.args
                data = self._plain_head() + data[consumed:]
                self._parser = self._make()
            else:
                return

    def should_upgrade(self) -> bool:
        """Return whether the request offers another protocol."""
        return bool(self._parser.should_upgrade())

    def should_keep_alive(self) -> bool:
        """Return whether the connection stays open after the request."""
        return bool(self._parser.should_keep_alive())

    def get_http_version(self) -> str:
        """Return the request's version, such as ``1.1``."""
        return str(self._parser.get_http_version())

    def get_method(self) -> bytes:
        """Return the request's method."""
        return bytes(self._parser.get_method())

    def _plain_head(self) -> bytes:
        method, version = self.get_method(), self.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self._receiver.url, version)]
        lines += [b"%b: %b" % each for each in self._receiver.headers if each[0] not in _OFFER]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _make(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self._receiver)
        # As uvicorn does: a response to a first request may close the connection before others.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

"""Limit the size of request bodies, also of compressed ones."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator

from timonel.serving.asgi import Headers, Message, Receive, Scope

_SLICE = 2**18
_GZIP = 31
_CODED = frozenset({b"content-encoding", b"transfer-encoding"})


class BodyTooLargeError(Exception):
    """A request body exceeds the size limit, as sent or decompressed.

    Args:
        most: The size limit in bytes.
        when: The stage at which it was exceeded, such as `` when unpacked``.
    """

    def __init__(self, most: int, when: str = "") -> None:
        super().__init__(
            f"The request body is larger than {most} bytes{when}. "
            "Send smaller batches, or start the server with a larger --max-body."
        )


class Gunzip:
    """Decompress a gzip stream in bounded slices, safe against zip bombs. Pure.

    A corrupt stream counts as empty, as in TensorFlow Serving.
    """

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=_GZIP)
        self.is_damaged = False

    @property
    def is_complete(self) -> bool:
        """Whether the stream has ended without an error."""
        return self._stream.eof and not self.is_damaged

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """Decompress ``packed`` and yield the data in slices."""
        while packed and not self.is_damaged and not self._stream.eof:
            try:
                yield self._stream.decompress(packed, _SLICE)
            except zlib.error:
                self.is_damaged = True
                return
            packed = self._stream.unconsumed_tail


def declared_length(scope: Scope) -> int | None:
    """Return the ``Content-Length`` of a request; None if it has none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


def is_within(headers: Headers, most: int) -> bool:
    """Whether the declared body is unencoded and at most ``most`` bytes long.

    The HTTP parser ensures that no body is longer than declared.
    """
    length = b""
    for name, value in headers:
        if name == b"content-length":
            if length:
                return False
            length = value
        elif name in _CODED:
            return False
    return length.isdigit() and int(length) <= most


class BoundedBody:
    """ASGI ``receive`` that raises when the body exceeds a limit.

    Args:
        receive: The wrapped ``receive``.
        most: The size limit in bytes.
    """

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._size = 0

    async def __call__(self) -> Message:
        """Return the next message.

        Raises:
            BodyTooLargeError: The body exceeds the limit.
        """
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > self._most:
                raise BodyTooLargeError(self._most)
        return message


class UnpackedBody:
    """ASGI ``receive`` that decompresses the body, up to ``most`` bytes."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._is_done = False

    async def __call__(self) -> Message:
        """Return the whole body as one message, then forward further messages.

        Raises:
            BodyTooLargeError: The body exceeds the limit.
        """
        if self._is_done:
            return await self._receive()
        gunzip, slices, size, more = Gunzip(), [], 0, True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            for piece in gunzip.feed(message.get("body", b"")):
                size += len(piece)
                if size > self._most:
                    raise BodyTooLargeError(self._most, " when unpacked")
                slices.append(piece)
                # Let other tasks run while a large body is decompressed.
                await asyncio.sleep(0)
            more = message.get("more_body", False)
        self._is_done = True
        body = b"".join(slices) if gunzip.is_complete else b""
        return {"type": "http.request", "body": body, "more_body": False}


def without_encoding(scope: Scope) -> Scope:
    """Return the scope without its content encoding and content length."""
    dropped = {b"content-encoding", b"content-length"}
    headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
    return {**scope, "headers": headers}

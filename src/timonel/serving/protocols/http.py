"""Bodies, headers and statuses that the REST protocols share."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from timonel.serving.asgi import (
    Answer,
    BodyTooLargeError,
    Headers,
    Request,
    Response,
    error_response,
    header,
)
from timonel.serving.inference.context import Correlation
from timonel.serving.status import Code, StatusError

TIMED_OUT: Final = "Timed out waiting for notification"
"""Message for a request that has timed out: TensorFlow Serving's."""
_UNZIPPED_LIMIT: Final = 100 * 2**20
"""TensorFlow Serving's limit of decompressed bodies."""
_GZIP: Final = 31
"""Window bits of zlib for a gzip header and trailer."""
_SLICE: Final = 1 << 18
_PIECE: Final = 1 << 14
"""Bytes to decompress at once: each call of zlib copies those that it leaves."""
_MAX_MEMBERS: Final = 10_000
"""Far above what tools make: 100 MiB in blocks of 64 KiB have 1,600. An empty one has 20 bytes."""


def _too_large(most: int, when: str = "") -> BodyTooLargeError:
    return BodyTooLargeError(
        Code.RESOURCE_EXHAUSTED,
        f"The request body is larger than {most} bytes{when}. "
        "Send smaller batches, or start the server with a larger --max-body.",
    )


def answering(answer: Answer, headers: Sequence[tuple[bytes, bytes]] = ()) -> Answer:
    """Wrap a handler: turn errors into responses, and add headers."""

    async def answered(request: Request) -> Response:
        try:
            response = await answer(request)
        except StatusError as error:
            response = error_response(error)
        return response._replace(headers=(*response.headers, *headers)) if headers else response

    return answered


async def body_of(request: Request, most: int | None = None) -> bytes:
    """Read the whole request body."""
    declared = header(request.headers, b"content-length")
    if most is not None and declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    chunks, size, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise StatusError(Code.CANCELLED, "the client closed the connection")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if most is not None and size > most:
            raise _too_large(most)
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def unzip(packed: bytes, most: int | None = None) -> bytes:
    """Decompress gzip of one or several members, in slices.

    As in TensorFlow Serving, corrupt data gives nothing. Without a limit, nor do more than 100 MiB.
    More than 10,000 members count as corrupt.
    """
    slices, left = [], _UNZIPPED_LIMIT if most is None else most
    member, members = zlib.decompressobj(wbits=_GZIP), 1
    for start in range(0, len(packed), _PIECE):
        piece = packed[start : start + _PIECE]
        while piece:
            if member.eof:
                member, members = zlib.decompressobj(wbits=_GZIP), members + 1
            try:
                slices.append(member.decompress(piece, _SLICE))
            except zlib.error:
                return b""
            left -= len(slices[-1])
            if left < 0 and most is not None:
                raise _too_large(most, " when unpacked")
            if left < 0 or members > _MAX_MEMBERS:
                return b""
            piece = member.unconsumed_tail or member.unused_data
    return b"".join(slices) if member.eof else b""


def content_type(headers: Headers) -> str:
    """Return the content type of a request's body; empty if absent."""
    return header(headers, b"content-type").decode("latin-1")


async def preflight(request: Request) -> Response:
    """Answer a CORS preflight: 200 if it has an origin."""
    origin = header(request.headers, b"origin")
    return Response(200 if b"http://" in origin or b"https://" in origin else 400, b"", None)


def correlation_of(headers: Headers) -> Correlation | None:
    """Return the headers that relate a request to others, if any."""
    return Correlation.of(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers
    )


def unquoted(text: str | None) -> str:
    """Decode a part of a URL; empty if it is missing."""
    return unquote(text) if text else ""

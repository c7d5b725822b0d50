"""ASGI middleware for access control and limits on request bodies."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable
from typing import Any

import orjson

from timonel.serving.asgi import App, Headers, Message, Receive, Scope, Send, is_gzipped
from timonel.serving.auth.control import AccessControl, TooManyError, credentials
from timonel.serving.auth.policy import Principal, Resource
from timonel.serving.auth.policy import Scope as Reach
from timonel.serving.auth.url_rights import resource_of
from timonel.serving.gunzip import Gunzip
from timonel.serving.settings.auth import Action
from timonel.serving.status import Code, StatusError

CERTIFICATE = "timonel.certificate"
"""Key in a request's scope for the names in the client certificate."""
_HTTP_STATUS = {
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNAVAILABLE: 503,
}


class AccessMiddleware:
    """Reject unauthorized requests and filter model listings by permission.

    Args:
        app: The wrapped REST application.
        control: The access rules, shared with gRPC.
    """

    def __init__(self, app: App, control: AccessControl) -> None:
        self._app = app
        self._control = control

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request, or pass it to the application."""
        if scope["type"] != "http" or self._passes(scope):
            return self._app(scope, receive, send)
        return self._watched(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        """Whether a request needs neither authentication nor a counted body."""
        most = self._control.settings.limits.max_body
        return self._control.guards_nothing and (most is None or is_within(scope["headers"], most))

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _Answer(send)
        try:
            await self._admit(scope, receive, answer)
        except TooManyError as error:
            retry = str(math.ceil(error.retry_s)).encode()
            await answer.refuse(_HTTP_STATUS[error.code], error.message, [(b"retry-after", retry)])
        except StatusError as error:
            headers = (
                [(b"www-authenticate", b"Bearer")] if error.code is Code.UNAUTHENTICATED else []
            )
            await answer.refuse(_HTTP_STATUS[error.code], error.message, headers)
        except BodyTooLargeError as error:
            await answer.refuse(413, str(error), [])

    async def _admit(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        if self._control.guards_nothing:
            bounded, scope = self._bounded(scope, receive, answer)
            await self._app(scope, bounded, answer)
            return
        query = scope["query_string"].decode("latin-1")
        resource = resource_of(scope["method"], scope["raw_path"].decode("latin-1"), query)
        if self._control.is_open(resource):
            bounded, scope = self._bounded(scope, receive, answer)
            names_models = scope["raw_path"] == b"/readyz"
            await self._app(scope, bounded, self._discreet(answer) if names_models else answer)
            return
        self._control.enter()
        try:
            principal = await self._identified(scope, resource)
            bounded, scope = self._bounded(scope, receive, answer)
            is_cut = resource.scope is Reach.LISTING and self._control.settings.is_closed
            send = _CutListing(answer, principal) if is_cut else answer
            await self._app(scope, bounded, send)
        finally:
            self._control.leave()

    async def _identified(self, scope: Scope, resource: Resource) -> Principal:
        shown = credentials(scope["headers"], scope.get(CERTIFICATE, ()))
        client = scope.get("client")
        principal = await self._control.identify(shown, client[0] if client else "local")
        self._control.authorize(principal, resource)
        return principal

    def _bounded(self, scope: Scope, receive: Receive, answer: _Answer) -> tuple[Receive, Scope]:
        most = self._control.settings.limits.max_body
        if most is None:
            return receive, scope
        if (declared_length(scope) or 0) > most:
            raise BodyTooLargeError(most)
        bounded: Receive = BoundedBody(receive, most)
        if is_gzipped(scope["headers"]):
            bounded, scope = UnpackedBody(bounded, most), without_encoding(scope)

        async def until_too_large() -> Message:
            # Tell the application that the client disconnected. Its response to that is dropped.
            try:
                return await bounded()
            except BodyTooLargeError as error:
                await answer.refuse(413, str(error), [])
                return {"type": "http.disconnect"}

        return until_too_large, scope

    def _discreet(self, answer: _Answer) -> Send:
        # The reason why a server is not ready names its models.
        return _WithoutReason(answer) if self._control.settings.is_closed else answer


class _Answer:
    """ASGI ``send`` that forwards one response: the application's or a rejection.

    After a rejection the connection stays open and further messages are dropped: a client that is
    disconnected while it sends never reads the reason.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False
        self._is_refused = False

    async def __call__(self, message: Message) -> None:
        if self._is_refused:
            return
        self._has_begun = True
        await self._send(message)

    async def refuse(self, status: int, text: str, headers: list[tuple[bytes, bytes]]) -> None:
        """Send an error response, unless another response has started."""
        if self._has_begun:
            return
        self._has_begun = self._is_refused = True
        body = orjson.dumps({"error": text})
        length = str(len(body)).encode()
        content = [(b"content-type", b"application/json"), (b"content-length", length)]
        start = {"type": "http.response.start", "status": status, "headers": content + headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


class _Whole:
    """ASGI ``send`` that buffers the whole response and may replace its body."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._start: Message = {}
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        if message.get("more_body", False):
            return
        body = self._body
        if body:  # HEAD responses have none
            body = self.replaced(self._start["status"], body)
        if body != self._body:
            headers = [(n, v) for n, v in self._start["headers"] if n != b"content-length"]
            headers.append((b"content-length", str(len(body)).encode()))
            self._start = {**self._start, "headers": headers}
        await self._answer(self._start)
        await self._answer({"type": "http.response.body", "body": body})

    def replaced(self, status: int, body: bytes) -> bytes:
        """Return the body to send instead."""
        raise NotImplementedError


class _CutListing(_Whole):
    def __init__(self, answer: _Answer, principal: Principal) -> None:
        super().__init__(answer)
        self._principal = principal

    def replaced(self, status: int, body: bytes) -> bytes:
        return cut_listing(body, self._principal) if status == 200 else body


class _WithoutReason(_Whole):
    def replaced(self, status: int, body: bytes) -> bytes:
        return body if status == 200 else b"not ready"


def cut_listing(body: bytes, principal: Principal) -> bytes:
    """Remove models whose status the principal may not see from a listing.

    Args:
        body: ``{"models": [{"name": ...}]}``, or the list alone.
        principal: The sender of the request.

    Raises:
        ValueError: The body is another document, which must not be shown.
    """
    content: Any = json.loads(body)
    models = content.get("models") if isinstance(content, dict) else content
    if not isinstance(models, list):
        raise ValueError("expected a list of models")  # noqa: TRY004 - a value of the document
    seen = [model for model in models if principal.may(Action.STATUS, model["name"])]
    return orjson.dumps({**content, "models": seen} if isinstance(content, dict) else seen)


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

"""ASGI middleware for access control and origin checks."""

from __future__ import annotations

from timonel.serving.asgi import App, Receive, Scope, Send, error_response
from timonel.serving.auth.control import AccessControl, right_for_url, secret_of
from timonel.serving.auth.origin_check import refused
from timonel.serving.status import Code, StatusError

ANONYMOUS = "timonel.anonymous"
"""Key in the scope of a request without credentials to a server that requires them."""


class AccessMiddleware:
    """Reject requests of foreign web pages, and unauthorized ones.

    Args:
        app: The wrapped REST application.
        control: The access rules, shared with gRPC.
        hosts: Accepted host names; None for any.
        cors: Whether to accept requests from web pages of other origins.
    """

    def __init__(
        self,
        app: App,
        control: AccessControl,
        hosts: frozenset[str] | None = None,
        *,
        cors: bool = False,
    ) -> None:
        self._app = app
        self._control = control
        self._hosts = hosts
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it to the application."""
        reason = refused(scope["method"], scope["headers"], self._hosts, cors=self._cors)
        if reason is not None:
            error = StatusError(Code.PERMISSION_DENIED, reason)
            await error_response(error).send(scope, send)
        elif self._control.guards_nothing:
            await self._app(scope, receive, send)
        else:
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        control = self._control
        right = right_for_url(scope["method"], scope["raw_path"].decode("latin-1"))
        if right is None:
            if control.settings.is_closed:
                scope[ANONYMOUS] = True
            await self._app(scope, receive, send)
            return
        try:
            control.admit(right, secret_of(scope["headers"]))
            with control.slot():
                await self._app(scope, receive, send)
        except StatusError as error:
            await error_response(error).send(scope, send)

"""Access control and origin checks of the REST port."""

from __future__ import annotations

from timonel.serving.asgi import Answer, Request, Response, error_response
from timonel.serving.auth.control import AccessControl, secret_of
from timonel.serving.auth.origin_check import refused
from timonel.serving.settings.auth import Right
from timonel.serving.status import Code, StatusError

ANONYMOUS = "timonel.anonymous"
"""Key in the scope of a request without credentials to a server that requires them."""


class RestGuard:
    """Guard of a `Router`: rejects requests of foreign web pages, and unauthorized ones."""

    def __init__(
        self, control: AccessControl, hosts: frozenset[str] | None = None, *, cors: bool = False
    ) -> None:
        self._control = control
        self._hosts = hosts
        self._cors = cors

    async def __call__(self, right: Right | None, request: Request, answer: Answer) -> Response:
        """Answer a request that needs a right, or reject it."""
        scope, control = request.scope, self._control
        reason = refused(scope["method"], scope["headers"], self._hosts, cors=self._cors)
        if reason is not None:
            return error_response(StatusError(Code.PERMISSION_DENIED, reason))
        if control.guards_nothing:
            return await answer(request)
        if right is None:
            if control.settings.is_closed:
                scope[ANONYMOUS] = True
            return await answer(request)
        try:
            control.admit(right, secret_of(scope["headers"]))
            with control.slot():
                return await answer(request)
        except StatusError as error:
            return error_response(error)

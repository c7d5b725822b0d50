"""What a server asks before it answers: who is it, may they, and not too often.

One object for both skins, so that limits hold for them together. For one event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from timonel.serving.auth.authentication import Authenticator, Credentials
from timonel.serving.auth.limits import Slots, Throttle
from timonel.serving.auth.policy import (
    PRINCIPAL,
    VIEWER,
    Principal,
    Resource,
    Scope,
    allows,
    denied,
)
from timonel.serving.settings.auth import AccessSettings
from timonel.serving.settings.rate import Rate, parse_rate
from timonel.serving.status import Code, StatusError

_BUSY_S = 1.0


class TooManyError(StatusError):
    """A limit is reached.

    Args:
        code: ``RESOURCE_EXHAUSTED`` for a rate, ``UNAVAILABLE`` for what the server can take.
        message: The text that clients see.
        retry_s: After how many seconds it is worth trying again.
    """

    def __init__(self, code: Code, message: str, retry_s: float) -> None:
        super().__init__(code, message)
        self.retry_s = retry_s


class AccessControl:
    """Admits requests.

    Args:
        settings: The rules.
        wall: The time, in seconds since the epoch.
        clock: A clock that never goes back.

    Raises:
        TimonelError: A file of keys cannot be read.
    """

    def __init__(
        self,
        settings: AccessSettings,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._authenticator = Authenticator(settings, wall, clock)
        limits = settings.limits
        limited = limits.principal_rate or limits.model_rate or limits.max_requests
        self.guards_nothing = not (settings.is_closed or settings.tls or limited)
        """Whether every request would be admitted, so that nobody need ask."""
        self._principals = Throttle(_rate(limits.principal_rate))
        self._models = Throttle(_rate(limits.model_rate))
        self._slots = Slots(limits.max_requests)

    def enter(self) -> None:
        """Take a place among the requests under way; whoever gets it must `leave`.

        Raises:
            TooManyError: There is none.
        """
        if not self._slots.take():
            raise TooManyError(Code.UNAVAILABLE, "too many requests at once", _BUSY_S)

    def leave(self) -> None:
        """Give the place back."""
        self._slots.give()

    def is_open(self, resource: Resource) -> bool:
        """Whether anyone may ask."""
        if resource.scope is Scope.PUBLIC:
            return True
        return resource.scope is Scope.OPEN and (
            self.settings.open_health or not self.settings.is_closed
        )

    async def identify(self, shown: Credentials, address: str) -> Principal:
        """Return who asks, unless they ask too often.

        Raises:
            StatusError: The credentials are missing or not valid.
            TooManyError: The principal has used up its rate.
        """
        principal = await self._authenticator.authenticate(shown, address)
        VIEWER.set(principal)
        if self.settings.is_closed or shown.certificate:
            PRINCIPAL.set(principal.name)
        self._throttle(self._principals, principal.name, "from this client")
        return principal

    def authorize(self, principal: Principal, resource: Resource) -> None:
        """Admit a request.

        Raises:
            StatusError: It is not allowed; the same whether or not the model exists.
            TooManyError: A model's rate is used up.
        """
        if not allows(principal, resource):
            raise denied()
        for model in resource.models:
            self._throttle(self._models, model, "to this model")

    def _throttle(self, throttle: Throttle, name: str, whose: str) -> None:
        wait_s = throttle.take(name, self._clock())
        if wait_s > 0:
            raise TooManyError(Code.RESOURCE_EXHAUSTED, f"too many requests {whose}", wait_s)


def _rate(text: str | None) -> Rate | None:
    return None if text is None else parse_rate(text)

"""Admit requests: authentication, permissions and rate limits.

REST and gRPC share one object, so limits apply to them together. For one event loop.
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
from timonel.serving.settings.auth import AccessSettings, Rate, parse_rate
from timonel.serving.status import Code, StatusError

_BUSY_S = 1.0


class TooManyError(StatusError):
    """A rate or concurrency limit is reached.

    Args:
        code: ``RESOURCE_EXHAUSTED`` for a rate, ``UNAVAILABLE`` for the server's capacity.
        message: The text sent to clients.
        retry_s: Seconds after which a retry may succeed.
    """

    def __init__(self, code: Code, message: str, retry_s: float) -> None:
        super().__init__(code, message)
        self.retry_s = retry_s


class AccessControl:
    """Authenticate, authorize and throttle requests.

    Args:
        settings: The access settings.
        wall: Clock in seconds since the epoch.
        clock: A monotonic clock.

    Raises:
        TimonelError: A key file cannot be read.
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
        """Whether all requests are admitted without checks."""
        self._principals = Throttle(_rate(limits.principal_rate))
        self._models = Throttle(_rate(limits.model_rate))
        self._slots = Slots(limits.max_requests)

    def enter(self) -> None:
        """Take a request slot. The caller must `leave` afterwards.

        Raises:
            TooManyError: All slots are taken.
        """
        if not self._slots.take():
            raise TooManyError(Code.UNAVAILABLE, "too many requests at once", _BUSY_S)

    def leave(self) -> None:
        """Release a request slot."""
        self._slots.give()

    def is_open(self, resource: Resource) -> bool:
        """Whether a resource needs no authentication."""
        if resource.scope is Scope.PUBLIC:
            return True
        return resource.scope is Scope.OPEN and (
            self.settings.open_health or not self.settings.is_closed
        )

    async def identify(self, shown: Credentials, address: str) -> Principal:
        """Authenticate the sender of a request and apply its rate limit.

        Raises:
            StatusError: The credentials are missing or invalid.
            TooManyError: The principal has exceeded its rate.
        """
        principal = await self._authenticator.authenticate(shown, address)
        VIEWER.set(principal)
        if self.settings.is_closed or shown.certificate:
            PRINCIPAL.set(principal.name)
        self._throttle(self._principals, principal.name, "from this client")
        return principal

    def authorize(self, principal: Principal, resource: Resource) -> None:
        """Check permissions and the rate limits of the requested models.

        Raises:
            StatusError: The request is not allowed; the same whether or not the model exists.
            TooManyError: A model's rate is exceeded.
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

"""Admit requests: authentication, permissions and rate limits.

REST and gRPC share one object, so limits apply to them together. For one event loop.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from timonel.serving.auth.keys import LONGEST, PREFIX, Keyring, watched_keys
from timonel.serving.auth.limits import ConcurrencyLimit, Throttle
from timonel.serving.auth.policy import (
    PRINCIPAL,
    VIEWER,
    Principal,
    Resource,
    Scope,
    allows,
    denied,
    unauthenticated,
)
from timonel.serving.auth.reloaded_file import ReloadedFile
from timonel.serving.settings.auth import (
    EVERYTHING,
    AccessSettings,
    Action,
    Grant,
    JwtSettings,
    Rate,
    parse_rate,
)
from timonel.serving.status import Code, StatusError

if TYPE_CHECKING:
    from timonel.serving.auth.tokens import TokenVerifier

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
        self._slots = ConcurrencyLimit(limits.max_requests)

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

    async def identify(self, shown: RequestCredentials, address: str) -> Principal:
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


OWNER = Principal("owner", (Grant(frozenset({Action.STATUS, Action.METADATA}), EVERYTHING.models),))
"""The process that started the server.

It may read status and metadata, to report on the server.
"""


@dataclass(frozen=True)
class RequestCredentials:
    """Credentials of a request.

    Args:
        secret: An API key or a token; None if the request has neither.
        certificate: The names in the client certificate, verified by TLS.
        is_ambiguous: The request has more than one secret, so none counts.
    """

    secret: str | None = None
    certificate: tuple[str, ...] = ()
    is_ambiguous: bool = False


def credentials(
    headers: Iterable[tuple[str | bytes, str | bytes]], certificate: tuple[str, ...] = ()
) -> RequestCredentials:
    """Read credentials from HTTP headers or gRPC metadata with lower-case names."""
    secrets = []
    for name, value in headers:
        key = name if isinstance(name, str) else name.decode("latin-1")
        if key not in {"authorization", "x-api-key"}:
            continue
        text = value if isinstance(value, str) else value.decode("latin-1")
        if key == "authorization":
            scheme, _, rest = text.strip().partition(" ")
            text = rest.strip() if scheme.lower() == "bearer" else ""
        secrets.append(text)
    return RequestCredentials(
        secrets[0] if len(secrets) == 1 else None, certificate, len(secrets) > 1
    )


class Authenticator:
    """Identify principals by key, token or certificate. For one event loop.

    Args:
        settings: The accepted keys and tokens; without any, every client may do everything.
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
        self._is_closed = settings.is_closed
        self._wall = wall
        self._clock = clock
        self._owner_key = settings.owner_key
        self._keys: ReloadedFile[Keyring] | None = None
        if settings.api_keys is not None:
            self._keys = watched_keys(Path(settings.api_keys))
        self._tokens = None if settings.jwt is None else _verifier(settings.jwt, clock)

    async def authenticate(self, shown: RequestCredentials, address: str) -> Principal:
        """Return the principal with these credentials.

        Args:
            shown: The credentials.
            address: Client address, used as the name of a client without credentials.

        Raises:
            StatusError: They are missing or invalid. Invalid credentials never count as missing.
        """
        if not self._is_closed:
            name = shown.certificate[0] if shown.certificate else address
            return Principal(name, (EVERYTHING,))
        principal = None if shown.is_ambiguous else await self._recognise(shown)
        if principal is None:
            raise unauthenticated()
        return principal

    async def _recognise(self, shown: RequestCredentials) -> Principal | None:
        now = self._wall()
        if shown.secret is None:
            if self._keys is None or not shown.certificate:
                return None
            ring = self._keys.refreshed(self._clock())
            return ring.recognise_certificate(shown.certificate, now)
        if self._is_owner(shown.secret):
            return OWNER
        if shown.secret.startswith(PREFIX):
            if self._keys is None or len(shown.secret) > LONGEST:
                return None
            return self._keys.refreshed(self._clock()).recognise(shown.secret, now)
        return None if self._tokens is None else await self._tokens.recognise(shown.secret, now)

    def _is_owner(self, secret: str) -> bool:
        if self._owner_key is None:
            return False
        shown_key = secret.encode("utf-8", "surrogatepass")
        return hmac.compare_digest(shown_key, self._owner_key.encode())


def _verifier(settings: JwtSettings, clock: Callable[[], float]) -> TokenVerifier:
    # Imports cryptography, 8 MiB that few servers need.
    from timonel.serving.auth.tokens import TokenVerifier  # noqa: PLC0415

    return TokenVerifier(settings, clock)

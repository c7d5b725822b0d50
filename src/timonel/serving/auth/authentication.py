"""Authenticate the sender of a request, for REST and gRPC."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from timonel.serving.auth.keyfile import watched_keys
from timonel.serving.auth.keys import LONGEST, PREFIX, Keyring
from timonel.serving.auth.policy import Principal, unauthenticated
from timonel.serving.auth.reloaded_file import ReloadedFile
from timonel.serving.settings.auth import EVERYTHING, AccessSettings, Action, Grant, JwtSettings

if TYPE_CHECKING:
    from timonel.serving.auth.token_verifier import TokenRecogniser

OWNER = Principal("owner", (Grant(frozenset({Action.STATUS, Action.METADATA}), EVERYTHING.models),))
"""The process that started the server.

It may read status and metadata, to report on the server.
"""


@dataclass(frozen=True)
class Credentials:
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
) -> Credentials:
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
    return Credentials(secrets[0] if len(secrets) == 1 else None, certificate, len(secrets) > 1)


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
        self._tokens = None if settings.jwt is None else _recogniser(settings.jwt, clock)

    async def authenticate(self, shown: Credentials, address: str) -> Principal:
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

    async def _recognise(self, shown: Credentials) -> Principal | None:
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
        given = secret.encode("utf-8", "surrogatepass")
        return hmac.compare_digest(given, self._owner_key.encode())


def _recogniser(settings: JwtSettings, clock: Callable[[], float]) -> TokenRecogniser:
    # Imports cryptography, 8 MiB that few servers need.
    from timonel.serving.auth.token_verifier import TokenRecogniser  # noqa: PLC0415

    return TokenRecogniser(settings, clock)

"""From credentials to a principal. Both skins come here."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from timonel.serving.access.files import Watched
from timonel.serving.access.jwks import FetchedKeys, FileKeys, key_source
from timonel.serving.access.keyfile import watched_keys
from timonel.serving.access.keys import PREFIX, Keyring
from timonel.serving.access.policy import EVERYTHING, Action, Grant, Principal, unauthenticated
from timonel.serving.access.settings import AccessSettings, JwtSettings
from timonel.serving.access.tokens import LONGEST, TokenError, find_keys, read_header, verify

_LOG = logging.getLogger(__name__)
_REMEMBERED = 1024
OWNER = Principal("owner", (Grant(frozenset({Action.STATUS, Action.METADATA}), EVERYTHING.models),))
"""The process that started the server: it may look, so that it can show how the server does."""


@dataclass(frozen=True)
class Credentials:
    """What a request shows.

    Args:
        secret: An API key or a token; none if there is none.
        certificate: The names in the client's certificate, which TLS has verified.
        is_ambiguous: More than one secret was shown, so none counts.
    """

    secret: str | None = None
    certificate: tuple[str, ...] = ()
    is_ambiguous: bool = False


def credentials(
    headers: Iterable[tuple[str | bytes, str | bytes]], certificate: tuple[str, ...] = ()
) -> Credentials:
    """Return what a request's headers, or metadata, show; names in lower case."""
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
    """Recognises principals. For one event loop.

    Args:
        settings: What is accepted; without keys and tokens everyone may do everything.
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
        self._is_closed = settings.is_closed
        self._wall = wall
        self._clock = clock
        self._owner_key = settings.owner_key
        self._keys: Watched[Keyring] | None = None
        if settings.api_keys is not None:
            self._keys = watched_keys(Path(settings.api_keys))
        self._tokens = _Tokens(settings.jwt, clock) if settings.jwt is not None else None

    async def authenticate(self, shown: Credentials, address: str) -> Principal:
        """Return whose credentials these are.

        Args:
            shown: The credentials.
            address: Where the request comes from, which names those whom nothing else names.

        Raises:
            StatusError: They are missing or not valid. Wrong ones never count as none.
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


class _Tokens:
    """Verifies tokens, and remembers those that were valid: a signature takes 100 us to check."""

    def __init__(self, settings: JwtSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._source: FileKeys | FetchedKeys = key_source(settings, clock)
        self._valid: OrderedDict[bytes, tuple[Principal, float, object]] = OrderedDict()

    async def recognise(self, token: str, now: float) -> Principal | None:
        try:
            header = read_header(token)
            keys = await self._source.get(header, self._clock())
            # Remembered with the keys that verified it: one that the issuer has withdrawn
            # takes its tokens with it.
            candidates = tuple(find_keys(keys, header))
            digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
            known = self._valid.get(digest)
            if known is not None and known[2] == candidates and now < known[1]:
                return known[0]
            principal, expires = verify(token, candidates, self._settings, now)
        except TokenError as error:
            _LOG.info("a token was refused: %s", error)
            return None
        self._valid[digest] = (principal, expires, candidates)
        if len(self._valid) > _REMEMBERED:
            self._valid.popitem(last=False)
        return principal

"""Authenticate tokens. Imports cryptography: only for servers that accept tokens."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable

from timonel.serving.auth.jwks import FetchedKeys, FileKeys, key_source
from timonel.serving.auth.policy import Principal
from timonel.serving.auth.tokens import TokenError, find_keys, read_header, verify
from timonel.serving.settings.auth import JwtSettings

_LOG = logging.getLogger(__name__)
_REMEMBERED = 1024


class TokenRecogniser:
    """Verify tokens and cache valid ones. For one event loop.

    Checking a signature takes 100 us.

    Args:
        settings: The accepted issuer and the required claims.
        clock: A monotonic clock.

    Raises:
        TimonelError: A key file cannot be read.
    """

    def __init__(self, settings: JwtSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._source: FileKeys | FetchedKeys = key_source(settings, clock)
        self._valid: OrderedDict[bytes, tuple[Principal, float, object]] = OrderedDict()

    async def recognise(self, token: str, now: float) -> Principal | None:
        """Return the principal of a token; None if it is not valid."""
        try:
            header = read_header(token)
            keys = await self._source.get(header, self._clock())
            # Cached with the keys that verified it, so that withdrawing a key also invalidates its
            # tokens.
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

"""From tokens to principals. Imports cryptography: for servers that accept tokens only."""

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
    """Verifies tokens, and remembers those that were valid: a signature takes 100 us to check.

    For one event loop.

    Args:
        settings: Whose tokens, and what they must say.
        clock: A clock that never goes back.

    Raises:
        TimonelError: A file of keys cannot be read.
    """

    def __init__(self, settings: JwtSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._source: FileKeys | FetchedKeys = key_source(settings, clock)
        self._valid: OrderedDict[bytes, tuple[Principal, float, object]] = OrderedDict()

    async def recognise(self, token: str, now: float) -> Principal | None:
        """Return whose token it is; none if it is not valid."""
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

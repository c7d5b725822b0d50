"""Verify JSON Web Tokens with the issuer's keys. Imports cryptography.

Protection against known attacks: the allowed algorithms include neither ``none`` nor a
shared-secret one, the key is chosen by id among the issuer's keys of the algorithm's type, and key
fields in the token's own header (``jwk``, ``jku``, ``x5u``) are ignored.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import json
import logging
import math
import urllib.error
import urllib.request
from base64 import urlsafe_b64decode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from timonel.errors import CorruptError, ServingError, TimonelError
from timonel.serving.auth.keys import LONGEST
from timonel.serving.auth.policy import Principal, grants_in
from timonel.serving.auth.reloaded_file import ReloadedFile
from timonel.serving.settings.auth import JwtSettings, parse_grant

_TYPES: Mapping[str, type[RSAKey | ECKey | OKPKey]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


class TokenError(Exception):
    """Invalid token; the text is for the server's log only."""


@dataclass(frozen=True)
class Header:
    """Signature fields of an unverified token's header."""

    algorithm: str
    key_id: str | None


@dataclass(frozen=True)
class SigningKey:
    """A signing key of an issuer.

    Args:
        kind: ``RSA``, ``EC`` or ``OKP``.
        key_id: The key's id; None if it has none.
        algorithm: The only algorithm the key is for; None for any algorithm of its kind.
        curve: The curve of an ``EC`` or ``OKP`` key.
        key: The key itself.
    """

    kind: str
    key_id: str | None
    algorithm: str | None
    curve: str | None
    key: Key

    def fits(self, header: Header) -> bool:
        """Whether the key matches a signature's header."""
        if self.algorithm is not None and self.algorithm != header.algorithm:
            return False
        if header.key_id is not None and self.key_id != header.key_id:
            return False
        curve = _CURVES.get(header.algorithm)
        return self.kind == _kind(header.algorithm) and curve in {None, self.curve}


def parse_keys(text: str | bytes, origin: str) -> tuple[SigningKey, ...]:
    """Parse the signing keys in a JWKS document.

    Keys for encryption, shared secrets and keys of unknown kinds are ignored.

    Raises:
        CorruptError: The document is invalid or contains no usable key.
    """
    try:
        items = json.loads(text)["keys"]
        keys = tuple(key for item in items if (key := _signing_key(item)) is not None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{origin} is not a JWKS document: {error!r}") from error
    if not keys:
        raise CorruptError(f"{origin} has no public key for signatures")
    return keys


def read_header(token: str) -> Header:
    """Parse the header of an unverified token.

    Raises:
        TokenError: The text is not a token.
    """
    if len(token) > LONGEST or token.count(".") != 2:
        raise TokenError("not a JWT in compact form")
    part = token.partition(".")[0]
    try:
        header = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        algorithm, key_id = header["alg"], header.get("kid")
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise TokenError("unreadable header") from None
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        raise TokenError("wrong types in the header")
    return Header(algorithm, key_id)


def find_keys(keys: Sequence[SigningKey], header: Header) -> list[SigningKey]:
    """Return the keys that match a header.

    Several keys match if tokens do not name one.
    """
    return [key for key in keys if key.fits(header)]


def verify(
    token: str, keys: Sequence[SigningKey], settings: JwtSettings, now: float
) -> tuple[Principal, float]:
    """Verify a token.

    Args:
        token: The token in compact form.
        keys: The issuer's keys.
        settings: The required claims.
        now: Seconds since the epoch.

    Returns:
        The principal, and the expiry time including the leeway.

    Raises:
        TokenError: The token is invalid, expired or not yet valid.
    """
    header = read_header(token)
    if header.algorithm not in settings.algorithms:
        raise TokenError(f"algorithm {header.algorithm!r} is not allowed")
    claims = _signed_claims(token, find_keys(keys, header), header)
    expires = _check_times(claims, settings.leeway_s, now)
    if claims.get("iss") != settings.issuer:
        raise TokenError(f"wrong issuer {claims.get('iss')!r}")
    audience = claims.get("aud")
    if settings.audience not in (audience if isinstance(audience, list) else [audience]):
        raise TokenError(f"wrong audience {audience!r}")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        raise TokenError("no subject")
    grants = tuple(parse_grant(text) for text in settings.allow)
    grants += grants_in(_texts(claims.get(settings.permissions_claim)))
    return Principal(subject, grants), expires


def _signed_claims(token: str, keys: Sequence[SigningKey], header: Header) -> dict[str, Any]:
    for key in keys:
        try:
            return jwt.decode(token, key.key, algorithms=[header.algorithm]).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            continue
    raise TokenError("no key of the issuer matches the signature")


def _check_times(claims: Mapping[str, Any], leeway_s: float, now: float) -> float:
    expires = _time(claims.get("exp")) + leeway_s
    if now >= expires:
        raise TokenError("expired")
    if now < _time(claims.get("nbf", 0)) - leeway_s:
        raise TokenError("not valid yet")
    return expires


def _time(value: object) -> float:
    # Comparisons with NaN are false, so NaN would pass every check. Numbers beyond the range of
    # floats are rejected, too.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15:
        return float(value)
    raise TokenError("missing or invalid times")


def _texts(claim: object) -> list[str]:
    if isinstance(claim, str):
        return claim.split()
    return [text for text in claim if isinstance(text, str)] if isinstance(claim, list) else []


def _signing_key(item: Mapping[str, Any]) -> SigningKey | None:
    kind = str(item.get("kty"))
    if kind not in _TYPES or item.get("use", "sig") != "sig":
        return None
    if "verify" not in item.get("key_ops", ["verify"]):
        return None
    # Import only the public key; ``key_ops`` and similar fields are checked above.
    public = {name: item[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in item}
    try:
        key = _TYPES[kind].import_key(public)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return SigningKey(kind, item.get("kid"), item.get("alg"), item.get("crv"), key)


def _kind(algorithm: str) -> str:
    return {"R": "RSA", "P": "RSA", "ES": "EC"}.get(
        algorithm[:1] if algorithm[:1] in {"R", "P"} else algorithm[:2], "OKP"
    )


_LOG = logging.getLogger(__name__)
_MOST_BYTES = 2**20
RETRY_S = 10.0
Fetch = Callable[[], bytes]


class FileKeys:
    """Keys from a file that is reloaded on change.

    For one event loop.

    Raises:
        TimonelError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        def read() -> tuple[SigningKey, ...]:
            try:
                return parse_keys(path.read_bytes(), str(path))
            except OSError as error:
                raise ServingError(f"cannot read the JWKS file {path}: {error.strerror}") from error

        def failed(error: Exception) -> None:
            _LOG.error("Cannot reload the token keys; the previous ones stay in use: %s", error)

        self._watched = ReloadedFile((path,), read, failed)

    async def get(self, header: Header, now: float) -> Sequence[SigningKey]:  # noqa: ARG002
        """Return the current keys."""
        return self._watched.refreshed(now)


class FetchedKeys:
    """Keys fetched in a thread, one fetch at a time.

    For one event loop.

    Args:
        fetch: Returns the JWKS document; blocks.
        settings: Sets how long keys are cached.
        clock: A monotonic clock.
    """

    def __init__(self, fetch: Fetch, settings: JwtSettings, clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._settings = settings
        self._clock = clock
        self._keys: tuple[SigningKey, ...] = ()
        self._fetched = -math.inf
        self._tried = -math.inf
        self._task: asyncio.Task[None] | None = None

    async def get(self, header: Header, now: float) -> Sequence[SigningKey]:
        """Return the keys, fetching them first if the requested key is missing.

        Keys due for a refresh are used until the new ones arrive.
        """
        keys = self._usable(now)
        if header.algorithm not in self._settings.algorithms:
            return keys  # no key can verify it
        if not find_keys(keys, header):
            if self._task is not None or self._may_try(now):
                # Shielded: a cancelled request must not cancel the fetch for other requests.
                await asyncio.shield(self._start())
            return self._usable(self._clock())
        if now - self._fetched >= self._settings.refresh_s and self._may_try(now):
            self._start()
        return keys

    def _usable(self, now: float) -> tuple[SigningKey, ...]:
        return self._keys if now - self._fetched < self._settings.stale_s else ()

    def _may_try(self, now: float) -> bool:
        # Clients that send tokens with invented key ids must not cause a fetch each time.
        return now - self._tried >= RETRY_S

    def _start(self) -> asyncio.Task[None]:
        if self._task is None:
            self._tried = self._clock()
            self._task = asyncio.create_task(self._refresh())
        return self._task

    async def _refresh(self) -> None:
        try:
            # A socket timeout applies to each read, not to a slow response as a whole.
            async with asyncio.timeout(self._settings.timeout_s):
                text = await asyncio.to_thread(self._fetch)
            self._keys = parse_keys(text, "the JWKS")
            self._fetched = self._tried = self._clock()
        except (TimonelError, TimeoutError) as error:
            _LOG.warning("Cannot fetch the keys of %s: %s", self._settings.issuer, error)
        finally:
            self._task = None


def key_source(settings: JwtSettings, clock: Callable[[], float]) -> FileKeys | FetchedKeys:
    """Return the key source for an issuer: a file or a URL.

    Raises:
        TimonelError: The key file cannot be read.
    """
    place = settings.jwks
    if place is not None and urlsplit(place).scheme not in {"http", "https"}:
        return FileKeys(Path(place))
    return FetchedKeys(lambda: _fetch_keys(settings), settings, clock)


def _fetch_keys(settings: JwtSettings) -> bytes:
    if settings.jwks is not None:
        return _download(settings.jwks, settings.timeout_s)
    url = settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
    found = _json(_download(url, settings.timeout_s), url)
    place = found.get("jwks_uri")
    if found.get("issuer") != settings.issuer or not isinstance(place, str):
        raise CorruptError(f"{url} is not the configuration of the issuer {settings.issuer}")
    if urlsplit(place).scheme != urlsplit(settings.issuer).scheme:
        raise CorruptError(f"{url} names keys of another scheme than the issuer's: {place}")
    return _download(place, settings.timeout_s)


def _download(url: str, timeout_s: float) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310
    try:
        with _OPENER.open(request, timeout=timeout_s) as answer:
            content: bytes = answer.read(_MOST_BYTES + 1)
    except (OSError, HTTPException, ValueError) as error:
        raise ServingError(f"Cannot fetch {url}: {error}") from error
    if len(content) > _MOST_BYTES:
        raise ServingError(f"the answer from {url} exceeds {_MOST_BYTES} bytes")
    return content


def _json(content: bytes, origin: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise CorruptError(f"the answer from {origin} is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Reject redirects: only the configured location may supply keys."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, which makes a redirect an error."""


_OPENER = urllib.request.build_opener(_NoRedirects)


_REMEMBERED = 1024


class TokenVerifier:
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
            _LOG.info("Rejected a token: %s", error)
            return None
        self._valid[digest] = (principal, expires, candidates)
        if len(self._valid) > _REMEMBERED:
            self._valid.popitem(last=False)
        return principal

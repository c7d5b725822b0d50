"""Verify JSON Web Tokens of an issuer. Pure; time is an argument.

Protection against known attacks: the allowed algorithms include neither ``none`` nor a
shared-secret one, the key is chosen by id among the issuer's keys of the algorithm's type, and key
fields in the token's own header (``jwk``, ``jku``, ``x5u``) are ignored.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from timonel.errors import CorruptError
from timonel.serving.auth.keys import LONGEST
from timonel.serving.auth.policy import Principal, grants_in
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
        wanted = _CURVES.get(header.algorithm)
        return self.kind == _kind(header.algorithm) and (wanted is None or wanted == self.curve)


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
        raise CorruptError(f"expected a JWKS document in {origin}, got {error!r}") from error
    if not keys:
        raise CorruptError(f"expected public keys for signatures in {origin}, got none")
    return keys


def read_header(token: str) -> Header:
    """Parse the header of an unverified token.

    Raises:
        TokenError: The text is not a token.
    """
    if len(token) > LONGEST or token.count(".") != 2:
        raise TokenError("no JWT in compact form")
    part = token.partition(".")[0]
    try:
        header = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        algorithm, key_id = header["alg"], header.get("kid")
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise TokenError("a header that cannot be read") from None
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        raise TokenError("a header with other types")
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
        raise TokenError(f"the algorithm {header.algorithm!r}")
    claims = _signed_claims(token, find_keys(keys, header), header)
    expires = _check_times(claims, settings.leeway_s, now)
    if claims.get("iss") != settings.issuer:
        raise TokenError(f"the issuer {claims.get('iss')!r}")
    audience = claims.get("aud")
    if settings.audience not in (audience if isinstance(audience, list) else [audience]):
        raise TokenError(f"the audience {audience!r}")
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
    raise TokenError("a signature of none of the issuer's keys")


def _check_times(claims: Mapping[str, Any], leeway_s: float, now: float) -> float:
    expires = _time(claims.get("exp")) + leeway_s
    if now >= expires:
        raise TokenError("it has expired")
    if now < _time(claims.get("nbf", 0)) - leeway_s:
        raise TokenError("it is not valid yet")
    return expires


def _time(value: object) -> float:
    # Comparisons with NaN are false, so NaN would pass every check. Numbers beyond the range of
    # floats are rejected, too.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15:
        return float(value)
    raise TokenError("times that are missing or no numbers")


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

"""An issuer of tokens for tests: keys made once, JWKS, and tokens with anything in them."""

from __future__ import annotations

import json
from functools import cache

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

NOW = 1_700_000_000
CLAIMS = {
    "iss": "https://issuer.example",
    "aud": "timonel",
    "sub": "alice",
    "exp": NOW + 600,
    "scope": "openid predict,metadata:digits*",
}


@cache
def rsa(name="one"):
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig"})


@cache
def elliptic(name="curve"):
    return ECKey.generate_key("P-256", {"kid": name, "alg": "ES256"})


def jwks(*keys):
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]})


def token(key=None, algorithm="RS256", header=(), **claims):
    """Sign; a claim of None is left out."""
    key = key or rsa()
    content = {k: v for k, v in {**CLAIMS, **claims}.items() if v is not None}
    return jwt.encode(
        {"alg": algorithm, "kid": key.kid, **dict(header)}, content, key, algorithms=[algorithm]
    )

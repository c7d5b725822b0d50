from __future__ import annotations

from timonel.endpoints.gateway.access import access_filters
from timonel.endpoints.gateway.parts import Secrets
from timonel.endpoints.spec import Access, Jwt, Tls

ACCESS = Access(
    api_keys="/keys",
    tls=Tls(cert="/cert", key="/key"),
    jwt=Jwt(issuer="https://i", audience="a", jwks="/jwks"),
)
SECRETS = Secrets({"shop": "0123456789abcdef"}, ("chain", "private"), "{}")


def test_tokens_need_an_expiry() -> None:
    _, found = access_filters(ACCESS, SECRETS)
    provider = found["typed_config"]["providers"]["issuer"]
    assert (provider["audiences"], provider["require_expiration"]) == (["a"], True)
    assert access_filters(Access(), SECRETS) == []


def test_without_keys_the_filter_stays() -> None:
    found, _ = access_filters(ACCESS, Secrets())
    assert found["typed_config"]["credentials"] == []

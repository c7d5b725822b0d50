from __future__ import annotations

from pathlib import Path

from timonel.endpoints.gateway.access import access_filters, configured_secrets
from timonel.endpoints.gateway.listeners import endpoint_listener
from timonel.endpoints.gateway.parts import Places, Route, Secrets
from timonel.endpoints.spec import Access, EndpointSpec, Jwt, Tls, Traffic

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


def test_secrets_are_found_in_the_configuration() -> None:
    def listeners(access: Access) -> dict[str, object]:
        traffic = Traffic(percent={1: 100})
        spec = EndpointSpec(name="digits", model="m", traffic=traffic, port=1, access=access)
        made = endpoint_listener(
            Route(spec, traffic, secrets=SECRETS), Places(Path("/c"), Path("/a"))
        )
        return {"resources": [{"name": "_hold"}, made]}

    assert configured_secrets(listeners(ACCESS), "digits") == SECRETS
    assert configured_secrets(listeners(Access()), "digits") == Secrets()
    assert configured_secrets(listeners(ACCESS), "other") == Secrets()
    assert configured_secrets({}, "digits") == Secrets()

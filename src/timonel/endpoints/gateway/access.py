"""TLS, keys and tokens in Envoy's configuration."""

from __future__ import annotations

from collections.abc import Mapping

from timonel.endpoints.gateway.parts import TYPE, Json, Secrets
from timonel.endpoints.spec import Access, Jwt

_API_KEY_FILTER = "envoy.filters.http.api_key_auth"
_JWT_FILTER = "envoy.filters.http.jwt_authn"


def tls_context(secrets: Secrets) -> Json:
    """Return the transport socket of a listener with TLS."""
    kind = "extensions.transport_sockets.tls.v3.DownstreamTlsContext"
    chain, key = secrets.certificate or ("", "")
    certificate = {
        "certificate_chain": {"inline_string": chain},
        "private_key": {"inline_string": key},
    }
    common = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificates": [certificate],
        "alpn_protocols": ["h2", "http/1.1"],
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {"@type": TYPE + kind, "common_tls_context": common},
    }


def access_filters(access: Access, secrets: Secrets) -> list[Json]:
    """Return the filters that reject requests without a valid key or token."""
    filters = []
    if access.api_keys is not None:
        filters.append(_api_keys(secrets.api_keys or {}))
    if access.jwt is not None:
        filters.append(_jwt(access.jwt, secrets.jwks or ""))
    return filters


def configured_secrets(listeners: Json, endpoint: str) -> Secrets:
    """Return the secrets of an endpoint in a configuration of listeners."""
    found = (each for each in listeners.get("resources", ()) if each.get("name") == endpoint)
    chain = next((each["filter_chains"][0] for each in found), None)
    if chain is None:
        return Secrets()
    keys, jwks, certificate = None, None, None
    # The last filter of a connection is that of HTTP.
    for each in chain["filters"][-1]["typed_config"]["http_filters"]:
        config = each["typed_config"]
        if each["name"] == _API_KEY_FILTER:
            keys = {one["client"]: one["key"] for one in config["credentials"]}
        elif each["name"] == _JWT_FILTER:
            jwks = config["providers"]["issuer"]["local_jwks"]["inline_string"]
    if "transport_socket" in chain:
        context = chain["transport_socket"]["typed_config"]["common_tls_context"]
        (pair,) = context["tls_certificates"]
        certificate = (
            pair["certificate_chain"]["inline_string"],
            pair["private_key"]["inline_string"],
        )
    return Secrets(keys, certificate, jwks)


def _api_keys(keys: Mapping[str, str]) -> Json:
    config = {
        "@type": f"{TYPE}extensions.filters.http.api_key_auth.v3.ApiKeyAuth",
        "credentials": [{"client": client, "key": key} for client, key in sorted(keys.items())],
        "key_sources": [{"header": "x-api-key"}, {"header": "authorization"}],
        "forwarding": {"header": "x-timonel-client", "hide_credentials": True},
    }
    return {"name": _API_KEY_FILTER, "typed_config": config}


def _jwt(jwt: Jwt, jwks: str) -> Json:
    provider: Json = {
        "issuer": jwt.issuer,
        "local_jwks": {"inline_string": jwks},
        "require_expiration": True,
    }
    if jwt.audience is not None:
        provider["audiences"] = [jwt.audience]
    config = {
        "@type": f"{TYPE}extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        "providers": {"issuer": provider},
        "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "issuer"}}],
    }
    return {"name": _JWT_FILTER, "typed_config": config}

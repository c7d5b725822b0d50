"""TLS, keys and tokens in Envoy's configuration."""

from __future__ import annotations

from collections.abc import Mapping

from timonel.endpoints.gateway.parts import TYPE, Json, Secrets
from timonel.endpoints.spec import Access, Jwt


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


def _api_keys(keys: Mapping[str, str]) -> Json:
    config = {
        "@type": f"{TYPE}extensions.filters.http.api_key_auth.v3.ApiKeyAuth",
        "credentials": [{"client": client, "key": key} for client, key in sorted(keys.items())],
        "key_sources": [{"header": "x-api-key"}, {"header": "authorization"}],
        "forwarding": {"header": "x-timonel-client", "hide_credentials": True},
    }
    return {"name": "envoy.filters.http.api_key_auth", "typed_config": config}


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
    return {"name": "envoy.filters.http.jwt_authn", "typed_config": config}

"""TLS, keys and tokens in Envoy's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timonel.endpoints.spec import Access, Jwt, Tls
from timonel.errors import InputError, SpecError

_TYPE = "type.googleapis.com/envoy."
_API_KEY_FILTER = "envoy.filters.http.api_key_auth"


def tls_context(tls: Tls) -> dict[str, Any]:
    """Return the transport socket of a listener with TLS."""
    kind = "extensions.transport_sockets.tls.v3.DownstreamTlsContext"
    certificate = {
        "certificate_chain": {"filename": tls.cert},
        "private_key": {"filename": tls.key},
    }
    common = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificates": [certificate],
        "alpn_protocols": ["h2", "http/1.1"],
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {"@type": _TYPE + kind, "common_tls_context": common},
    }


def access_filters(access: Access, keys: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the filters that reject requests without a valid key or token.

    Args:
        access: Who may use the endpoint.
        keys: API keys by client, if the endpoint requires them.
    """
    filters = []
    if access.api_keys is not None:
        filters.append(_api_keys(keys))
    if access.jwt is not None:
        filters.append(_jwt(access.jwt))
    return filters


def read_api_keys(path: Path) -> dict[str, str]:
    """Return keys by client from a file of lines ``client=key``; ``#`` begins a comment."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the file of API keys {path}: {error}") from error
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        client, equals, key = (part.strip() for part in text.partition("="))
        if not equals or not client or len(key) < 16:
            raise SpecError(
                f"{path}, line {number}: expected client=key with a key of 16 characters or more"
            )
        if client in keys or key in keys.values():
            raise SpecError(f"{path}, line {number}: the client or its key occurs twice")
        keys[client] = key
    if not keys:
        raise SpecError(f"{path} contains no API key", hint="write lines of the form client=key")
    return keys


def configured_keys(listeners: Mapping[str, Any], endpoint: str) -> dict[str, str] | None:
    """Return the API keys of an endpoint in a configuration of listeners; None without any."""
    for listener in listeners.get("resources", ()):
        if listener.get("name") == endpoint:
            # The last filter of a connection is that of HTTP.
            manager = listener["filter_chains"][0]["filters"][-1]["typed_config"]
            for each in manager["http_filters"]:
                if each["name"] == _API_KEY_FILTER:
                    credentials = each["typed_config"]["credentials"]
                    return {found["client"]: found["key"] for found in credentials}
    return None


def _api_keys(keys: Mapping[str, str]) -> dict[str, Any]:
    config = {
        "@type": f"{_TYPE}extensions.filters.http.api_key_auth.v3.ApiKeyAuth",
        "credentials": [{"client": client, "key": key} for client, key in sorted(keys.items())],
        "key_sources": [{"header": "x-api-key"}, {"header": "authorization"}],
        "forwarding": {"header": "x-timonel-client", "hide_credentials": True},
    }
    return {"name": _API_KEY_FILTER, "typed_config": config}


def _jwt(jwt: Jwt) -> dict[str, Any]:
    provider: dict[str, Any] = {
        "issuer": jwt.issuer,
        "local_jwks": {"filename": jwt.jwks},
        "require_expiration": True,
    }
    if jwt.audience is not None:
        provider["audiences"] = [jwt.audience]
    config = {
        "@type": f"{_TYPE}extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        "providers": {"issuer": provider},
        "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "issuer"}}],
    }
    return {"name": "envoy.filters.http.jwt_authn", "typed_config": config}

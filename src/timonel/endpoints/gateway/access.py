"""TLS, keys, tokens, rights and rates in Envoy's configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from timonel.endpoints.gateway.parts import TYPE, Json, Secrets, seconds
from timonel.endpoints.spec import EndpointSpec, Jwt, Limits, parse_rate
from timonel.serving.auth.origin_check import is_address

CLIENT_HEADER = "x-timonel-client"
"""Request header with the client of a key or token; the gateway replaces that of a client."""
_FILTERS = f"{TYPE}extensions.filters.http."
_ALWAYS = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
_MOST_CLIENTS = 10_000
"""Clients whose rates are counted; of more, the least recently seen ones are forgotten."""
_UNLIMITED = {"max_tokens": 1 << 30, "tokens_per_fill": 1 << 30, "fill_interval": "1s"}


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


def access_filters(spec: EndpointSpec, secrets: Secrets) -> list[Json]:
    """Return the filters that reject requests by origin, key, token, right and rate."""
    access = spec.access
    filters = [_origins(access.hosts)]
    if access.api_keys is not None:
        filters.append(_api_keys(secrets.api_keys or {}))
    if access.jwt is not None:
        jwks = None if access.jwt.is_remote else secrets.jwks or '{"keys": []}'
        filters += _jwt(access.jwt, spec.name, jwks)
    if spec.limits.rate is not None or spec.limits.total_rate is not None:
        is_closed = access.api_keys is not None or access.jwt is not None
        filters.append(_rates(spec.limits, is_closed=is_closed))
    return filters


def client_address(proxies: Sequence[str]) -> Json:
    """Return how a connection manager finds the address of a client.

    Args:
        proxies: Networks of proxies, whose X-Forwarded-For is believed.
    """
    if not proxies:
        return {"use_remote_address": True}
    networks = (each.partition("/") for each in proxies)
    trusted = [
        {"address_prefix": address, "prefix_len": int(length)} for address, _, length in networks
    ]
    kind = f"{TYPE}extensions.http.original_ip_detection.xff.v3.XffConfig"
    return {
        "use_remote_address": False,
        "original_ip_detection_extensions": [
            {
                "name": "envoy.http.original_ip_detection.xff",
                "typed_config": {
                    "@type": kind,
                    "xff_trusted_cidrs": {"cidrs": trusted},
                    "skip_xff_append": False,
                },
            }
        ],
    }


def issuer_cluster(endpoint: str, jwt: Jwt, authorities: Path | None) -> Json:
    """Return the cluster of the server that has the public keys of an issuer.

    Args:
        jwt: Its tokens, with the URL of the keys.
        authorities: File with the certificate authorities that may sign its certificate.
    """
    url = urlsplit(jwt.jwks)
    host, is_plain = url.hostname or "", url.scheme == "http"
    address = {"address": host, "port_value": url.port or (80 if is_plain else 443)}
    name = _issuer_name(endpoint)
    cluster: Json = {
        "@type": f"{TYPE}config.cluster.v3.Cluster",
        "name": name,
        "type": "STRICT_DNS",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": {"socket_address": address}}}]}
            ],
        },
    }
    if is_plain:
        return cluster
    matcher = {
        "san_type": "IP_ADDRESS" if is_address(host) else "DNS",
        "matcher": {"exact": host},
    }
    cluster["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{TYPE}extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": host,
            "common_tls_context": {
                "validation_context": {
                    "trusted_ca": {"filename": str(authorities)},
                    "match_typed_subject_alt_names": [matcher],
                }
            },
        },
    }
    return cluster


def _issuer_name(endpoint: str) -> str:
    return f"issuer-{endpoint}"


def _filter(name: str, kind: str, config: Json) -> Json:
    return {
        "name": f"envoy.filters.http.{name}",
        "typed_config": {"@type": _FILTERS + kind, **config},
    }


def _origins(hosts: Sequence[str]) -> Json:
    """Refuse requests that compute something for pages of other sites, which send an Origin.

    A page of another port is of another site; those of ``hosts`` are behind a proxy.
    """
    config: Json = {
        "filter_enabled": _ALWAYS,
        "additional_origins": [_host_pattern(host) for host in hosts],
    }
    skip = {"@type": f"{TYPE}extensions.filters.common.matcher.action.v3.SkipFilter"}
    origin = {
        "@type": f"{TYPE}type.matcher.v3.HttpRequestHeaderMatchInput",
        "header_name": "origin",
    }
    found = {
        "input": {"name": "origin", "typed_config": origin},
        "value_match": {"safe_regex": {"google_re2": {}, "regex": ".*"}},
    }
    check = _filter("csrf", "csrf.v3.CsrfPolicy", config)
    predicate = {"not_matcher": {"single_predicate": found}}
    action = {"action": {"name": "skip", "typed_config": skip}}
    return {
        "name": "envoy.filters.http.csrf",
        "typed_config": {
            "@type": f"{TYPE}extensions.common.matching.v3.ExtensionWithMatcher",
            "extension_config": check,
            "xds_matcher": {
                "matcher_list": {"matchers": [{"predicate": predicate, "on_match": action}]}
            },
        },
    }


def _host_pattern(host: str) -> Json:
    return {"suffix": host[1:]} if host.startswith("*.") else {"exact": host}


def _api_keys(keys: Mapping[str, str]) -> Json:
    config = {
        "credentials": [{"client": client, "key": key} for client, key in sorted(keys.items())],
        "key_sources": [{"header": "x-api-key"}, {"header": "authorization"}],
        "forwarding": {"header": CLIENT_HEADER, "hide_credentials": True},
    }
    return _filter("api_key_auth", "api_key_auth.v3.ApiKeyAuth", config)


def _jwt(jwt: Jwt, endpoint: str, jwks: str | None) -> list[Json]:
    if jwks is not None and not json.loads(jwks)["keys"]:
        # Envoy accepts no empty set, and would go on with the former keys.
        return [_filter("rbac", "rbac.v3.RBAC", {"rules": {"action": "ALLOW"}})]
    provider: Json = {
        "issuer": jwt.issuer,
        "require_expiration": True,
        "claim_to_headers": [{"header_name": CLIENT_HEADER, "claim_name": "sub"}],
        "payload_in_metadata": "token",
        "normalize_payload_in_metadata": {"space_delimited_claims": ["scope"]},
    }
    if jwt.is_remote:
        provider["remote_jwks"] = {
            "http_uri": {"uri": jwt.jwks, "cluster": _issuer_name(endpoint), "timeout": "5s"},
            "cache_duration": "300s",
            # The endpoint starts without them; until they come, no token is valid.
            "async_fetch": {"fast_listener": True},
        }
    else:
        provider["local_jwks"] = {"inline_string": jwks}
    if jwt.audience is not None:
        provider["audiences"] = [jwt.audience]
    config = {
        "providers": {"issuer": provider},
        "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "issuer"}}],
    }
    return [_filter("jwt_authn", "jwt_authn.v3.JwtAuthentication", config), _claims(jwt)]


def _claims(jwt: Jwt) -> Json:
    """Admit tokens that name a client and have the required claims."""
    needed: list[Json] = [{"header": {"name": CLIENT_HEADER, "present_match": True}}]
    needed += [
        {"or_ids": {"ids": [_claim(name, text), _claim(name, {"list_match": {"one_of": text}})]}}
        for name, value in sorted(jwt.claims.items())
        for text in ({"string_match": {"exact": value}},)
    ]
    policy = {"permissions": [{"any": True}], "principals": [{"and_ids": {"ids": needed}}]}
    config = {"rules": {"action": "ALLOW", "policies": {"claims": policy}}}
    return _filter("rbac", "rbac.v3.RBAC", config)


def _claim(name: str, value: Json) -> Json:
    matcher = {
        "filter": "envoy.filters.http.jwt_authn",
        "path": [{"key": "token"}, {"key": name}],
        "value": value,
    }
    return {"sourced_metadata": {"metadata_matcher": matcher, "metadata_source": "DYNAMIC"}}


def _rates(limits: Limits, *, is_closed: bool) -> Json:
    """Limit the requests of each client, by key or token or address, and of all together."""
    config: Json = {
        "stat_prefix": "rates",
        "filter_enabled": _ALWAYS,
        "filter_enforced": _ALWAYS,
        "rate_limited_as_resource_exhausted": True,
        "token_bucket": _bucket(limits.total_rate) if limits.total_rate else _UNLIMITED,
    }
    rates = [each for each in (limits.rate, limits.total_rate) if each is not None]
    wait_s = max(parse_rate(each).per_token_s for each in rates)
    config["response_headers_to_add"] = [
        {"header": {"key": "retry-after", "value": str(max(1, round(wait_s)))}}
    ]
    if limits.rate is not None:
        by_name = {"header_name": CLIENT_HEADER, "descriptor_key": "client"}
        action = {"request_headers": by_name} if is_closed else {"remote_address": {}}
        key = "client" if is_closed else "remote_address"
        config |= {
            "rate_limits": [{"actions": [action]}],
            "descriptors": [{"entries": [{"key": key}], "token_bucket": _bucket(limits.rate)}],
            "max_dynamic_descriptors": _MOST_CLIENTS,
        }
    return _filter("local_ratelimit", "local_ratelimit.v3.LocalRateLimit", config)


def _bucket(text: str) -> Json:
    rate = parse_rate(text)
    return {
        "max_tokens": rate.burst,
        "tokens_per_fill": rate.requests,
        "fill_interval": seconds(rate.period_s),
    }

"""Configuration of Envoy as plain values. Pure.

Each endpoint has a listener for REST and gRPC and a route table; each version of it has four
clusters: for REST (``<service>-http``) and gRPC (``<service>-grpc``), each with a variant
``-ready`` that has nothing but ready replicas. Without a ready replica, requests to the former go
to the internal listener ``hold``, where an external authorization (the activator) delays them until
there is one, and then to the latter.

The fields are those of Envoy's v3 API: https://www.envoyproxy.io/docs/envoy/latest/api-v3/api
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from timonel.endpoints.gateway.access import access_filters, tls_context
from timonel.endpoints.spec import LABEL_HEADER, EndpointSpec, Traffic, service_name

Json = dict[str, Any]
Protocol = Literal["http", "grpc"]
_Shares = list[tuple[int, str, int]]
"""Version, service and percentage."""
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")

SERVICE_HEADER = "x-timonel-service"
"""Header that names the service of a held request; the gateway replaces that of a client."""
VERSION_HEADER = "x-timonel-version"
"""Response header with the version that answered."""

REFUSED, TIMED_OUT = 429, 408
"""Answers of the activator that clients get as 503 and 504.

Envoy takes 5xx for a failure of the activator, and would drop its headers and body.
"""

_TYPE = "type.googleapis.com/envoy."
_UNLIMITED = 1_000_000
_BUFFER_BYTES = 1 << 20
_COOKIE_S = 30 * 86_400
_HOLD = "hold"
_ACTIVATOR = "activator"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Route:
    """An endpoint as the gateway knows it.

    Attributes:
        spec: The endpoint.
        traffic: The traffic that applies, which may be that of an earlier revision.
        ready: Addresses (``host:port``) of ready replicas, by version and name of port.
        api_keys: API keys by client, if the endpoint requires them.
    """

    spec: EndpointSpec
    traffic: Traffic
    ready: Mapping[int, Mapping[Protocol, Sequence[str]]] = field(default_factory=dict)
    api_keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Places:
    """Files and sockets of the gateway.

    Attributes:
        config: Folder of the configuration.
        activator: Unix socket of the activator.
    """

    config: Path
    activator: Path


def bootstrap(places: Places, max_connections: int) -> Json:
    """Return the part of Envoy's configuration that is read once."""
    return {
        "node": {"id": "gateway", "cluster": "timonel"},
        # Envoy adds values to its histograms at this interval.
        "stats_flush_interval": "1s",
        "dynamic_resources": {
            "lds_config": _file(places, "listeners"),
            "cds_config": _file(places, "clusters"),
        },
        "bootstrap_extensions": [
            {
                "name": "envoy.bootstrap.internal_listener",
                "typed_config": {
                    "@type": f"{_TYPE}extensions.bootstrap.internal_listener.v3.InternalListener"
                },
            }
        ],
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": f"{_TYPE}extensions.resource_monitors.downstream_connections.v3."
                        "DownstreamConnectionsConfig",
                        "max_active_downstream_connections": max_connections,
                    },
                }
            ]
        },
    }


def files(routes: Sequence[Route], places: Places) -> dict[str, Json]:
    """Return the configuration files by name, in the order in which to write them.

    Clusters come before the routes that name them.
    """
    services = [
        (service_name(route.spec.name, version), route, version)
        for route in routes
        for version in sorted({*route.traffic.versions, *route.ready})
    ]
    clusters = [_activator_cluster(places)]
    content: dict[str, Json] = {}
    for name, route, version in services:
        for protocol in PROTOCOLS:
            addresses = route.ready.get(version, {}).get(protocol, ())
            for cluster, is_held in ((f"{name}-{protocol}", True), (_ready(name, protocol), False)):
                clusters.append(_cluster(cluster, protocol, places))
                content[cluster] = _assignment(cluster, addresses, is_held=is_held)
    content["clusters"] = _resources(clusters)
    content["hold"] = _resources([_hold_routes(routes)])
    for route in routes:
        content[_table(route.spec.name)] = _resources([_routes(route)])
    content["listeners"] = _resources(
        [_hold_listener(places), *(_listener(route, places) for route in routes)]
    )
    return content


def _ready(service: str, protocol: Protocol) -> str:
    return f"{service}-{protocol}-ready"


def _table(endpoint: str) -> str:
    return f"routes-{endpoint}"


def _resources(resources: Iterable[Json]) -> Json:
    listed = list(resources)
    digest = hashlib.sha256(repr(listed).encode()).hexdigest()[:12]
    return {"version_info": digest, "resources": listed}


def _file(places: Places, name: str) -> Json:
    folder = places.config / name
    return {
        "path_config_source": {
            "path": str(folder / "current.json"),
            "watched_directory": {"path": str(folder)},
        },
        "resource_api_version": "V3",
    }


def _address(address: str) -> Json:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


def _assignment(cluster: str, addresses: Sequence[str], *, is_held: bool) -> Json:
    groups = []
    if addresses:
        endpoints = [{"endpoint": {"address": _address(address)}} for address in addresses]
        groups.append({"priority": 0, "lb_endpoints": endpoints})
    if is_held:
        internal = {
            "envoy_internal_address": {"server_listener_name": _HOLD, "endpoint_id": cluster}
        }
        groups.append(
            {"priority": len(groups), "lb_endpoints": [{"endpoint": {"address": internal}}]}
        )
    kind = f"{_TYPE}config.endpoint.v3.ClusterLoadAssignment"
    return _resources([{"@type": kind, "cluster_name": cluster, "endpoints": groups}])


def _cluster(name: str, protocol: Protocol, places: Places) -> Json:
    explicit: Json = {f"http{'2' if protocol == 'grpc' else ''}_protocol_options": {}}
    return {
        "@type": f"{_TYPE}config.cluster.v3.Cluster",
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": _file(places, name)},
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        # Requests for replicas that are all down go to the next priority.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "circuit_breakers": _unlimited(),
        # A replica that cannot be reached, before its supervisor notices.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 3,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "max_ejection_percent": 100,
            "interval": "1s",
            "base_ejection_time": "1s",
            "max_ejection_time": "10s",
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": explicit,
            }
        },
    }


def _activator_cluster(places: Places) -> Json:
    address = {"pipe": {"path": str(places.activator)}}
    return {
        "@type": f"{_TYPE}config.cluster.v3.Cluster",
        "name": _ACTIVATOR,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": _unlimited(),
        "load_assignment": {
            "cluster_name": _ACTIVATOR,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def _unlimited() -> Json:
    """Return circuit breakers that do not open: replicas limit requests themselves."""
    return {
        "thresholds": [
            {
                "max_connections": _UNLIMITED,
                "max_pending_requests": _UNLIMITED,
                "max_requests": _UNLIMITED,
                "retry_budget": {"budget_percent": {"value": 50}, "min_retry_concurrency": 100},
            }
        ]
    }


def _listener(route: Route, places: Places) -> Json:
    spec = route.spec
    filters = [
        *access_filters(spec.access, route.api_keys),
        _filter("grpc_web", "grpc_web.v3.GrpcWeb"),
        # Counts the status codes of gRPC, whose HTTP status is always 200.
        _filter("grpc_stats", "grpc_stats.v3.FilterConfig"),
    ]
    chain: Json = {"filters": [_manager(spec, places, _table(spec.name), filters)]}
    if spec.access.tls is not None:
        chain["transport_socket"] = tls_context(spec.access.tls)
    return {
        "@type": f"{_TYPE}config.listener.v3.Listener",
        "name": spec.name,
        "address": {"socket_address": {"address": spec.host, "port_value": spec.port}},
        # Another Envoy, of another workspace, must not get a part of the connections.
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "filter_chains": [chain],
    }


def _hold_listener(places: Places) -> Json:
    hold = {
        "name": "envoy.filters.http.ext_authz",
        "typed_config": {
            "@type": f"{_TYPE}extensions.filters.http.ext_authz.v3.ExtAuthz",
            "http_service": {
                "server_uri": {
                    "uri": "http://activator",
                    "cluster": _ACTIVATOR,
                    # The time limit of the request applies, and that of the activator.
                    "timeout": "86400s",
                },
                "path_prefix": "/hold",
            },
            "allowed_headers": {"patterns": [{"exact": SERVICE_HEADER}]},
            "status_on_error": {"code": "ServiceUnavailable"},
        },
    }
    return {
        "@type": f"{_TYPE}config.listener.v3.Listener",
        "name": _HOLD,
        "internal_listener": {},
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "filter_chains": [{"filters": [_manager(None, places, _HOLD, [hold])]}],
    }


def _manager(
    spec: EndpointSpec | None, places: Places, table: str, filters: Sequence[Json]
) -> Json:
    """Return the HTTP connection manager of an endpoint, or of held requests for None."""
    kind = "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    config: Json = {
        "@type": _TYPE + kind,
        "stat_prefix": table,
        "codec_type": "AUTO",
        "rds": {"route_config_name": table, "config_source": _file(places, table)},
        "http_filters": [*filters, _filter("router", "router.v3.Router")],
        "stream_idle_timeout": "0s",
    }
    if spec is None:
        config["local_reply_config"] = {
            "mappers": [_status(REFUSED, 503), _status(TIMED_OUT, 504)],
        }
    else:
        limits = spec.limits
        config |= {
            "server_name": "timonel",
            "strip_any_host_port": True,
            "use_remote_address": True,
            "normalize_path": True,
            "max_request_headers_kb": limits.max_header_kib,
            "request_headers_timeout": _seconds(limits.header_timeout_s),
            "request_timeout": _seconds(limits.timeout_s),
            "stream_idle_timeout": _seconds(limits.timeout_s),
            "common_http_protocol_options": {
                "idle_timeout": "3600s",
                "max_headers_count": 200,
                "headers_with_underscores_action": "REJECT_REQUEST",
            },
            "http2_protocol_options": {
                "max_concurrent_streams": 256,
                "initial_stream_window_size": 1 << 20,
                "initial_connection_window_size": 1 << 20,
            },
            "access_log": [_access_log()],
        }
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": config}


def _status(found: int, replacement: int) -> Json:
    """Return a mapper of the status of Envoy's own responses."""
    value = {"default_value": found, "runtime_key": "none"}
    return {
        "filter": {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}},
        "status_code": replacement,
    }


def _access_log() -> Json:
    """Return a log of the requests that failed, on standard output."""
    at_least_500 = {
        "status_code_filter": {
            "comparison": {"op": "GE", "value": {"default_value": 500, "runtime_key": "none"}}
        }
    }
    line = (
        "%START_TIME% %REQ(:AUTHORITY)% %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE% "
        "%RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %UPSTREAM_CLUSTER% %UPSTREAM_HOST% "
        "%DURATION% ms %REQ(X-REQUEST-ID)%\n"
    )
    return {
        "name": "envoy.access_loggers.stdout",
        "filter": at_least_500,
        "typed_config": {
            "@type": f"{_TYPE}extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"text_format_source": {"inline_string": line}},
        },
    }


def _filter(name: str, kind: str) -> Json:
    typed = {"@type": f"{_TYPE}extensions.filters.http.{kind}"}
    return {"name": f"envoy.filters.http.{name}", "typed_config": typed}


def _routes(route: Route) -> Json:
    """Return the route table of an endpoint: gRPC first, by label, header and percentage."""
    name, traffic = route.spec.name, route.traffic
    chosen: list[tuple[list[Json], _Shares]] = [
        ([_header(LABEL_HEADER, label)], _weighted(name, {version: 100}))
        for label, version in traffic.labels.items()
    ]
    chosen += [
        ([_header(match.header, match.value)], _weighted(name, {match.version: 100}))
        for match in traffic.matches
    ]
    sticky = traffic.sticky
    if sticky is not None and sticky.cookie is not None:
        chosen += [
            ([_cookie(sticky.cookie, version)], _weighted(name, {version: 100}))
            for version, share in traffic.percent.items()
            if share
        ]
    chosen.append(([], _weighted(name, traffic.percent)))
    return {
        "@type": f"{_TYPE}config.route.v3.RouteConfiguration",
        "name": _table(name),
        "validate_clusters": False,
        "virtual_hosts": [
            {
                "name": name,
                "domains": _hosts(route.spec),
                "include_request_attempt_count": True,
                "routes": [
                    {
                        "match": {"prefix": "/", "headers": [*_protocol(protocol), *headers]},
                        "route": _action(route, clusters, protocol),
                    }
                    for protocol in ("grpc", "http")
                    for headers, clusters in chosen
                ],
            }
        ],
    }


def _hosts(spec: EndpointSpec) -> list[str]:
    """Return the accepted Host headers: on a loopback address, not those of other sites' pages."""
    if spec.host not in _LOOPBACK:
        return ["*"]
    return sorted({*_LOOPBACK, "[::1]", *spec.access.hosts})


def _protocol(protocol: str) -> list[Json]:
    if protocol == "http":
        return []
    return [{"name": "content-type", "string_match": {"prefix": "application/grpc"}}]


def _header(name: str, value: str) -> Json:
    return {"name": name, "string_match": {"exact": value}}


def _cookie(name: str, version: int) -> Json:
    pattern = f"(.*;)?\\s*{name}={version}(;.*)?"
    return {"name": "cookie", "string_match": {"safe_regex": {"regex": pattern}}}


def _weighted(name: str, percent: Mapping[int, int]) -> _Shares:
    shares = sorted(percent.items())
    return [(version, service_name(name, version), share) for version, share in shares if share]


def _action(route: Route, clusters: _Shares, protocol: str) -> Json:
    weighted: Json = {
        "clusters": [
            {
                "name": f"{service}-{protocol}",
                "weight": share,
                "request_headers_to_add": [_set_header(SERVICE_HEADER, service)],
                "response_headers_to_add": _response_headers(route.traffic, version, clusters),
            }
            for version, service, share in clusters
        ]
    }
    action: Json = {
        "weighted_clusters": weighted,
        # Replicas listen on a loopback address, and refuse other hosts.
        "host_rewrite_literal": "localhost",
        "append_x_forwarded_host": True,
        "timeout": _seconds(route.spec.limits.timeout_s),
        "idle_timeout": _seconds(route.spec.limits.timeout_s),
        "retry_policy": _retries(),
    }
    sticky = route.traffic.sticky
    if sticky is not None and sticky.header is not None:
        weighted["use_hash_policy"] = True
        action["hash_policy"] = [{"header": {"header_name": sticky.header}}]
    shadow = route.traffic.shadow
    if shadow is not None:
        share = {"numerator": shadow.percent, "denominator": "HUNDRED"}
        # Copies do not wait for a replica: their header names the service of the original.
        copies = service_name(route.spec.name, shadow.version)
        action["request_mirror_policies"] = [
            {
                "cluster": f"{copies}-{protocol}-ready",
                "disable_shadow_host_suffix_append": True,
                "runtime_fraction": {"default_value": share},
            }
        ]
    return action


def _response_headers(traffic: Traffic, version: int, clusters: _Shares) -> list[Json]:
    headers = [_set_header(VERSION_HEADER, str(version))]
    sticky = traffic.sticky
    if sticky is not None and sticky.cookie is not None and len(clusters) > 1:
        cookie = f"{sticky.cookie}={version}; Path=/; Max-Age={_COOKIE_S}; HttpOnly; SameSite=Lax"
        headers.append(
            {
                "header": {"key": "set-cookie", "value": cookie},
                "append_action": "APPEND_IF_EXISTS_OR_ADD",
            }
        )
    return headers


def _retries() -> Json:
    """Return the retry policy: what no replica has answered is tried once more elsewhere.

    A prediction has no side effects, so it may be computed twice.
    """
    return {
        "retry_on": "connect-failure,refused-stream,reset,reset-before-request",
        "num_retries": 6,
        "retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"},
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": f"{_TYPE}extensions.retry.host.previous_hosts.v3."
                    "PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 3,
    }


def _set_header(name: str, value: str) -> Json:
    return {
        "header": {"key": name, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


def _hold_routes(routes: Sequence[Route]) -> Json:
    """Return the routes of released requests to the replicas of their service."""
    services = [
        service_name(route.spec.name, version)
        for route in routes
        for version in sorted({*route.traffic.versions, *route.ready})
    ]
    return {
        "@type": f"{_TYPE}config.route.v3.RouteConfiguration",
        "name": _HOLD,
        "validate_clusters": False,
        "virtual_hosts": [
            {
                "name": _HOLD,
                "domains": ["*"],
                "routes": [
                    {
                        "match": {
                            "prefix": "/",
                            "headers": [*_protocol(protocol), _header(SERVICE_HEADER, service)],
                        },
                        "route": {
                            "cluster": _ready(service, protocol),
                            "timeout": "0s",
                            "retry_policy": _retries(),
                        },
                    }
                    for service in services
                    for protocol in ("grpc", "http")
                ],
            }
        ],
    }


def _seconds(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"

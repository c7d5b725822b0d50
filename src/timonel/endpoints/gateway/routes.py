"""Route tables of Envoy: which version gets a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from timonel.endpoints.gateway.parts import (
    HOLD,
    LOST_HEADER,
    PROTOCOLS,
    RETRIED_BYTES,
    SERVICE_HEADER,
    TYPE,
    VERSION_HEADER,
    EndpointRoute,
    Json,
    Protocol,
    cluster_name,
    seconds,
    set_header,
    table_name,
)
from timonel.endpoints.spec import LABEL_HEADER, EndpointSpec, Traffic, service_name
from timonel.serving.auth.origin_check import is_loopback
from timonel.serving.settings.server import COMPARISON_HEADER, NOT_STARTED_HEADER

_Shares = list[tuple[int, str, int]]
"""Version, service and percentage."""
COMPARED_PERCENT = 10
"""Percentage of requests that two versions compute while their answers are compared."""
_CHECKED = ("origin",)
# gRPC cancels calls that come while a server begins to stop.
_NOT_BEGUN = ("connect-failure", "refused-stream", "reset-before-request", "cancelled")
"""Request headers that the gateway has checked; replicas have another Host."""
_COOKIE_S = 30 * 86_400
_OWN_PATHS = "(?i)/(metrics|monitoring)((/|%2f).*)?"
"""Paths of single replicas, for the control plane: metrics, answers to compare."""
_RELOAD_PATH = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"


def endpoint_routes(route: EndpointRoute) -> Json:
    """Return the route table of an endpoint.

    A version or label in the path comes first; then gRPC and REST by label, header and percentage.
    """
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
    domains = _hosts(route.spec)
    return {
        "@type": f"{TYPE}config.route.v3.RouteConfiguration",
        "name": table_name(name),
        "validate_clusters": False,
        "ignore_port_in_host_matching": True,
        "virtual_hosts": [
            {
                "name": name,
                "domains": domains,
                "include_request_attempt_count": True,
                # A larger body is sent to no other replica when its own one dies.
                "request_body_buffer_limit": RETRIED_BYTES,
                "response_headers_to_remove": [LOST_HEADER],
                "routes": [
                    _refusal(404, "an endpoint has no such path", safe_regex={"regex": _OWN_PATHS}),
                    _refusal(403, "an endpoint takes no list of models", path=_RELOAD_PATH),
                    *(_version_route(route, version) for version in traffic.versions),
                    *(_label_route(route, *each) for each in traffic.labels.items()),
                    _other_labels(traffic.labels),
                    *(
                        made
                        for protocol in reversed(PROTOCOLS)
                        for headers, shares in chosen
                        for made in _routes(route, headers, shares, protocol)
                    ),
                ],
            },
            *_other_hosts(domains),
        ],
    }


def hold_routes(routes: Sequence[EndpointRoute]) -> Json:
    """Return the routes of released requests to the replicas of their service."""
    services = [
        service_name(route.spec.name, version) for route in routes for version in route.versions
    ]
    return {
        "@type": f"{TYPE}config.route.v3.RouteConfiguration",
        "name": HOLD,
        "validate_clusters": False,
        "virtual_hosts": [
            {
                "name": HOLD,
                "domains": ["*"],
                "request_body_buffer_limit": RETRIED_BYTES,
                "routes": [
                    {
                        "match": {
                            "prefix": "/",
                            "headers": [*_protocol(protocol), _header(SERVICE_HEADER, service)],
                        },
                        "route": {
                            "cluster": cluster_name(service, protocol, "released"),
                            "timeout": "0s",
                            "retry_policy": _retries(_NOT_BEGUN, NOT_STARTED_HEADER),
                        },
                    }
                    for service in services
                    for protocol in reversed(PROTOCOLS)
                ],
            }
        ],
    }


def _hosts(spec: EndpointSpec) -> list[str]:
    """Return the accepted Host headers: on a loopback address, not those of other sites' pages."""
    if not is_loopback(spec.host):
        return ["*"]
    return sorted({spec.host, "localhost", "127.0.0.1", "::1", "[::1]", *spec.access.hosts})


def _other_hosts(domains: Sequence[str]) -> list[Json]:
    if "*" in domains:
        return []
    reason = "this endpoint does not answer requests for this host: use localhost, or --allow-host"
    routes = [_refusal(403, reason, prefix="/")]
    return [{"name": "_other", "domains": ["*"], "routes": routes}]


def _refusal(status: int, reason: str, **match: object) -> Json:
    body = {"inline_string": reason}
    return {"match": match, "direct_response": {"status": status, "body": body}}


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


def _routes(
    route: EndpointRoute, headers: list[Json], shares: _Shares, protocol: Protocol
) -> list[Json]:
    """Return the route of some requests; before it, that of those which two versions compute."""
    match = {"prefix": "/", "headers": [*_protocol(protocol), *headers]}
    base, to = route.compared or (0, 0)
    # Envoy takes route and cluster by the same random number. So first those of the version that
    # answers: as long as its share is large enough, it gets all of them.
    shares = sorted(shares, key=lambda share: share[0] != base)
    plain = {
        "match": match,
        "route": _action(route, shares, protocol),
        "request_headers_to_remove": [COMPARISON_HEADER, *_CHECKED],
    }
    if not shares or shares[0][0] != base:
        return [plain]
    fraction = {"default_value": {"numerator": COMPARED_PERCENT, "denominator": "HUNDRED"}}
    compared = {
        "match": match | {"runtime_fraction": fraction},
        "route": _action(route, shares, protocol, copies_to=to),
        # Not the ID of the request, which clients can choose.
        "request_headers_to_add": [set_header(COMPARISON_HEADER, "%UNIQUE_ID%")],
        "request_headers_to_remove": list(_CHECKED),
    }
    return [compared, plain]


def _version_route(route: EndpointRoute, version: int) -> Json:
    """Return the route of REST requests that name a version."""
    shares = _weighted(route.spec.name, {version: 100})
    action = _action(route, shares, "http")
    action.pop("request_mirror_policies", None)  # another version has no such path
    return {
        # As replicas read it: in any case, and with leading zeros.
        "match": {
            "safe_regex": {"regex": f"(?i)/v[12]/models/[^/]+/versions/0*{version}([:/].*)?"}
        },
        "route": action,
        "request_headers_to_remove": [COMPARISON_HEADER, *_CHECKED],
    }


def _label_route(route: EndpointRoute, label: str, version: int) -> Json:
    """Return the route of REST requests that name a label; replicas know only versions."""
    found = _version_route(route, version)
    models = "((?i:/v1/models)/[^/]+)/(?i:labels)|(/v2/models/[^/]+)/versions"
    found["match"] = {"safe_regex": {"regex": f"({models})/{label}([:/].*)?"}}
    found["route"]["regex_rewrite"] = {
        "pattern": {"regex": f"^({models})/{label}"},
        "substitution": f"\\2\\3/versions/{version}",
    }
    return found


def _other_labels(labels: Iterable[str]) -> Json:
    """Return the refusal of requests whose header names no label of the endpoint."""
    known = [_header(LABEL_HEADER, label) | {"invert_match": True} for label in labels]
    headers = [{"name": LABEL_HEADER, "present_match": True}, *known]
    return _refusal(400, "this endpoint has no such label", prefix="/", headers=headers)


def _action(
    route: EndpointRoute, clusters: _Shares, protocol: Protocol, copies_to: int | None = None
) -> Json:
    weighted: Json = {
        "clusters": [
            {
                "name": cluster_name(service, protocol),
                "weight": share,
                "request_headers_to_add": [set_header(SERVICE_HEADER, service)],
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
        "timeout": seconds(route.spec.limits.timeout_s),
        "idle_timeout": seconds(route.spec.limits.timeout_s),
        "retry_policy": _retries((*_NOT_BEGUN, "reset"), NOT_STARTED_HEADER, LOST_HEADER),
    }
    sticky = route.traffic.sticky
    if sticky is not None and sticky.header is not None:
        weighted["use_hash_policy"] = True
        action["hash_policy"] = [{"header": {"header_name": sticky.header}}]
    copies = {} if copies_to is None else {copies_to: 100}
    if route.traffic.shadow is not None:
        copies.setdefault(route.traffic.shadow.version, route.traffic.shadow.percent)
    if copies:
        action["request_mirror_policies"] = [
            _copies(service_name(route.spec.name, version), protocol, percent)
            for version, percent in copies.items()
        ]
    return action


def _copies(service: str, protocol: Protocol, percent: int) -> Json:
    share = {"numerator": percent, "denominator": "HUNDRED"}
    return {
        # Copies do not wait for a replica: their header names the service of the original.
        "cluster": cluster_name(service, protocol, "copies"),
        "disable_shadow_host_suffix_append": True,
        "runtime_fraction": {"default_value": share},
    }


def _response_headers(traffic: Traffic, version: int, clusters: _Shares) -> list[Json]:
    headers = [set_header(VERSION_HEADER, str(version))]
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


def _retries(conditions: Sequence[str], *headers: str) -> Json:
    """Return a retry policy: requests that no replica has begun are tried elsewhere.

    A process that dies takes its computations with it, so its requests are tried elsewhere, too:
    only by the route of the client's request, also for those that were held, so that the number of
    retries limits how many replicas a request can crash.
    """
    return {
        "retry_on": ",".join((*conditions, "retriable-headers")),
        "retriable_headers": [{"name": name, "present_match": True} for name in headers],
        "num_retries": 6,
        "retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"},
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": f"{TYPE}extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        # A dead replica has the fewest requests, so it is drawn often until it is ejected.
        "host_selection_retry_max_attempts": 30,
    }

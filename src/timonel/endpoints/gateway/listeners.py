"""Listeners of Envoy: one per endpoint, and the one of requests without a replica."""

from __future__ import annotations

from collections.abc import Sequence

from timonel.endpoints.gateway.access import (
    CLIENT_HEADER,
    access_filters,
    client_address,
    tls_context,
)
from timonel.endpoints.gateway.parts import (
    ACTIVATOR,
    BUFFER_BYTES,
    HOLD,
    LOST_HEADER,
    REFUSED,
    SERVICE_HEADER,
    TIMED_OUT,
    TYPE,
    EndpointRoute,
    Json,
    Places,
    listener_name,
    seconds,
    set_header,
    table_name,
    watched_file,
)
from timonel.endpoints.spec import EndpointSpec

_MAX_RETRIES = 1_000_000
_DAY = "86400s"
_TEXTS = {
    "missing_host_header": "the request has no Host header",
    "path_normalization_failed": "the path of the request is invalid",
    "absolute_path_rejected": "an endpoint has no such path",
    "route_not_found": "an endpoint has no such path",
}
"""Reasons of responses for which Envoy has no text, by its name for their cause."""


def endpoint_listener(route: EndpointRoute, places: Places) -> Json:
    """Return the listener of an endpoint, for REST and gRPC."""
    spec = route.spec
    filters = [
        *access_filters(spec, route.secrets),
        _filter("grpc_web", "grpc_web.v3.GrpcWeb"),
        # Counts the status codes of gRPC, whose HTTP status is always 200.
        _filter("grpc_stats", "grpc_stats.v3.FilterConfig"),
    ]
    most = {
        "name": "envoy.filters.network.connection_limit",
        "typed_config": {
            "@type": f"{TYPE}extensions.filters.network.connection_limit.v3.ConnectionLimit",
            "stat_prefix": spec.name,
            "max_connections": spec.limits.max_connections,
        },
    }
    chain: Json = {"filters": [most, _manager(spec, places, table_name(spec.name), filters)]}
    if spec.access.tls is not None:
        chain["transport_socket"] = tls_context(route.secrets)
    return {
        "@type": f"{TYPE}config.listener.v3.Listener",
        "name": listener_name(spec),
        "address": {"socket_address": {"address": spec.host, "port_value": spec.port}},
        # Another Envoy, of another workspace, must not get a part of the connections.
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [chain],
    }


def hold_listener(places: Places) -> Json:
    """Return the listener of requests without a replica, which the activator delays."""
    hold = {
        "name": "envoy.filters.http.ext_authz",
        "typed_config": {
            "@type": f"{TYPE}extensions.filters.http.ext_authz.v3.ExtAuthz",
            "http_service": {
                "server_uri": {
                    "uri": "http://activator",
                    "cluster": ACTIVATOR,
                    # The time limit of the request applies, and that of the activator.
                    "timeout": _DAY,
                },
                "path_prefix": "/hold",
                # The next control plane is asked; the time limit of the request ends that. Envoy
                # takes the longest interval for that of an answer, too.
                "retry_policy": {
                    "retry_on": "5xx",  # also a question that is cut off, or not taken
                    "num_retries": _MAX_RETRIES,
                    "retry_back_off": {"base_interval": "0.1s", "max_interval": _DAY},
                },
            },
            "allowed_headers": {"patterns": [{"exact": SERVICE_HEADER}]},
            "status_on_error": {"code": "ServiceUnavailable"},
        },
    }
    return {
        "@type": f"{TYPE}config.listener.v3.Listener",
        "name": HOLD,
        "internal_listener": {},
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [{"filters": [_manager(None, places, HOLD, [hold])]}],
    }


def _manager(
    spec: EndpointSpec | None, places: Places, table: str, filters: Sequence[Json]
) -> Json:
    """Return the HTTP connection manager of an endpoint, or of held requests for None."""
    kind = "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    config: Json = {
        "@type": TYPE + kind,
        "stat_prefix": table,
        "codec_type": "AUTO",
        "rds": {"route_config_name": table, "config_source": watched_file(places, table)},
        "http_filters": [*filters, _filter("router", "router.v3.Router")],
        "stream_idle_timeout": "0s",
        "generate_request_id": False,  # unread, and replicas cache heads that are alike
    }
    if spec is None:
        config["local_reply_config"] = {
            "mappers": [_status(REFUSED, 503), _status(TIMED_OUT, 504), _lost()],
        }
    else:
        limits = spec.limits
        config |= {
            "server_name": "timonel",
            **client_address(spec.access.proxies),
            "early_header_mutation_extensions": [_without_own_headers()],
            "local_reply_config": _reasons(),
            "normalize_path": True,
            "max_request_headers_kb": limits.max_header_kib,
            "request_headers_timeout": seconds(limits.header_timeout_s),
            "request_timeout": seconds(limits.timeout_s),
            "stream_idle_timeout": seconds(limits.timeout_s),
            "common_http_protocol_options": {
                "idle_timeout": "3600s",
                "max_headers_count": 200,
                # Ignored, as by a server; proxies of others may take them for those with dashes.
                "headers_with_underscores_action": "DROP_HEADER",
            },
            # Clients such as ApacheBench, and nginx by default, speak HTTP/1.0. Java's offers to go
            # on in HTTP/2, and sends the body in HTTP/1.1 all the same: like a server, the gateway
            # goes on in HTTP/1.1 whatever is offered.
            "http_protocol_options": {
                "accept_http_10": True,
                "default_host_for_http_10": "localhost",
                "ignore_http_11_upgrade": [{"safe_regex": {"regex": ".*"}}],
            },
            "http2_protocol_options": {
                "max_concurrent_streams": 256,
                "initial_stream_window_size": 1 << 20,
                "initial_connection_window_size": 1 << 20,
            },
            "access_log": [_access_log()],
        }
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": config}


def _without_own_headers() -> Json:
    """Return the removal of headers that clients must not set."""
    kind = "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": TYPE + kind,
            "mutations": [
                {"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}},
                {"remove": CLIENT_HEADER},
            ],
        },
    }


def _reasons() -> Json:
    """Return the form of Envoy's own responses: that of a server."""
    of_grpc = {"prefix": "application/grpc"}
    header: Json = {"name": "content-type", "string_match": of_grpc, "invert_match": True}
    header["treat_missing_header_as_empty"] = True
    of_rest = {"header_filter": {"header": header}}
    form = {"body_format_override": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}}}
    mappers: list[Json] = [
        {
            "filter": {"and_filter": {"filters": [of_rest, _details(found)]}},
            "body": {"inline_string": text},
            **form,
        }
        for found, text in _TEXTS.items()
    ]
    return {"mappers": [*mappers, {"filter": of_rest, **form}]}


def _details(found: str) -> Json:
    """Return a filter of Envoy's own responses by their cause."""
    kind = "extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    config = {"@type": TYPE + kind, "expression": f"response.code_details == '{found}'"}
    name = "envoy.access_loggers.extension_filters.cel"
    return {"extension_filter": {"name": name, "typed_config": config}}


def _status(found: int, replacement: int) -> Json:
    """Return a mapper of the status of Envoy's own responses."""
    value = {"default_value": found, "runtime_key": "none"}
    return {
        "filter": {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}},
        "status_code": replacement,
    }


def _lost() -> Json:
    """Return a mapper that marks responses to requests whose replica died."""
    return {
        # The connection to it ended, or it reset the stream.
        "filter": {"response_flag_filter": {"flags": ["UC", "UR"]}},
        "headers_to_add": [set_header(LOST_HEADER, "1")],
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
            "@type": f"{TYPE}extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"text_format_source": {"inline_string": line}},
        },
    }


def _filter(name: str, kind: str) -> Json:
    typed = {"@type": f"{TYPE}extensions.filters.http.{kind}"}
    return {"name": f"envoy.filters.http.{name}", "typed_config": typed}

"""Clusters of Envoy: the replicas of a version, and the activator."""

from __future__ import annotations

from collections.abc import Sequence

from timonel.endpoints.gateway.parts import (
    ACTIVATOR,
    BUFFER_BYTES,
    HOLD,
    TYPE,
    Json,
    Places,
    Protocol,
    watched_file,
)
from timonel.processes.ports import UNIX

_NO_LIMIT = 1_000_000
_UNLIMITED = {
    "max_connections": _NO_LIMIT,
    "max_pending_requests": _NO_LIMIT,
    "max_requests": _NO_LIMIT,
}
"""Limits of circuit breakers that do not open: replicas limit requests themselves."""
_RETRIES = {"budget_percent": {"value": 50}, "min_retry_concurrency": 100}


def replica_cluster(name: str, protocol: Protocol, places: Places) -> Json:
    """Return a cluster of replicas, by name and protocol."""
    explicit: Json = {f"http{'2' if protocol == 'grpc' else ''}_protocol_options": {}}
    return {
        "@type": f"{TYPE}config.cluster.v3.Cluster",
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": watched_file(places, name)},
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        # Requests for replicas that are all down go to the next priority.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "circuit_breakers": {"thresholds": [_UNLIMITED | {"retry_budget": _RETRIES}]},
        # A replica that cannot be reached, before its supervisor notices.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
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
                "@type": f"{TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": explicit,
            }
        },
    }


def activator_cluster(places: Places) -> Json:
    """Return the cluster of the activator."""
    address = {"pipe": {"path": str(places.activator)}}
    return {
        "@type": f"{TYPE}config.cluster.v3.Cluster",
        "name": ACTIVATOR,
        "type": "STATIC",
        "connect_timeout": "1s",
        # Without a control plane, all requests that wait ask again.
        "circuit_breakers": {"thresholds": [_UNLIMITED | {"max_retries": _NO_LIMIT}]},
        "load_assignment": {
            "cluster_name": ACTIVATOR,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def assignment(cluster: str, addresses: Sequence[str], *, is_held: bool) -> Json:
    """Return the hosts of a cluster; requests without one are held if ``is_held``."""
    groups = []
    if addresses:
        endpoints = [{"endpoint": {"address": _address(address)}} for address in addresses]
        groups.append({"priority": 0, "lb_endpoints": endpoints})
    if is_held:
        internal = {
            "envoy_internal_address": {"server_listener_name": HOLD, "endpoint_id": cluster}
        }
        groups.append(
            {"priority": len(groups), "lb_endpoints": [{"endpoint": {"address": internal}}]}
        )
    kind = f"{TYPE}config.endpoint.v3.ClusterLoadAssignment"
    return {"@type": kind, "cluster_name": cluster, "endpoints": groups}


def _address(address: str) -> Json:
    if address.startswith(UNIX):
        return {"pipe": {"path": address.removeprefix(UNIX)}}
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}

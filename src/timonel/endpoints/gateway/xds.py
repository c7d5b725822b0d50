"""Configuration of Envoy as plain values. Pure.

Each endpoint has a listener for REST and gRPC and a route table; each version of it has clusters of
its ready replicas: for REST (``<service>-http``) and gRPC (``<service>-grpc``). Without a ready
replica, their requests go to the internal listener ``_hold``, where an external authorization (the
activator) delays them until there is one; then they go to a variant of the cluster (``-released``).
Versions that get copies of requests have another variant (``-copies``), in which nothing waits.

The fields are those of Envoy's v3 API: https://www.envoyproxy.io/docs/envoy/latest/api-v3/api
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from timonel.endpoints.gateway.access import issuer_cluster
from timonel.endpoints.gateway.clusters import activator_cluster, assignment, replica_cluster
from timonel.endpoints.gateway.listeners import endpoint_listener, hold_listener
from timonel.endpoints.gateway.parts import (
    HOLD,
    PROTOCOLS,
    TYPE,
    EndpointRoute,
    Json,
    Places,
    Use,
    cluster_name,
    table_name,
    watched_file,
)
from timonel.endpoints.gateway.routes import endpoint_routes, hold_routes
from timonel.endpoints.spec import service_name

MAX_HEAP_BYTES = 1 << 30
"""Memory of Envoy beyond which it answers new requests with 503, instead of growing on."""

_HEAP = "envoy.resource_monitors.fixed_heap"
_ON_HEAP = {"shrink_heap": 0.2, "disable_http_keepalive": 0.9, "stop_accepting_requests": 0.95}
"""Actions by the fraction of the heap that starts them."""


def bootstrap(places: Places, max_connections: int) -> Json:
    """Return the part of Envoy's configuration that is read once."""
    return {
        "node": {"id": "gateway", "cluster": "timonel"},
        # Envoy adds values to its histograms at this interval.
        "stats_flush_interval": "1s",
        "dynamic_resources": {
            "lds_config": watched_file(places, "listeners"),
            "cds_config": watched_file(places, "clusters"),
        },
        "bootstrap_extensions": [
            {
                "name": "envoy.bootstrap.internal_listener",
                "typed_config": {
                    "@type": f"{TYPE}extensions.bootstrap.internal_listener.v3.InternalListener"
                },
            }
        ],
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": f"{TYPE}extensions.resource_monitors.downstream_connections.v3."
                        "DownstreamConnectionsConfig",
                        "max_active_downstream_connections": max_connections,
                    },
                },
                {
                    "name": _HEAP,
                    "typed_config": {
                        "@type": f"{TYPE}extensions.resource_monitors.fixed_heap.v3."
                        "FixedHeapConfig",
                        "max_heap_size_bytes": MAX_HEAP_BYTES,
                    },
                },
            ],
            "actions": [
                {
                    "name": f"envoy.overload_actions.{action}",
                    "triggers": [{"name": _HEAP, "threshold": {"value": value}}],
                }
                for action, value in _ON_HEAP.items()
            ],
        },
    }


def files(routes: Sequence[EndpointRoute], places: Places) -> dict[str, Json]:
    """Return the configuration files by name, in the order in which to write them.

    Clusters come before the routes that name them.
    """
    services = [
        (service_name(route.spec.name, version), route, version)
        for route in routes
        for version in route.versions
    ]
    clusters = [activator_cluster(places)]
    clusters += [
        issuer_cluster(route.spec.name, jwt, places.authorities)
        for route in routes
        if (jwt := route.spec.access.jwt) is not None and jwt.is_remote
    ]
    content: dict[str, Json] = {}
    for name, route, version in services:
        for protocol in PROTOCOLS:
            addresses = route.ready.get(version, {}).get(protocol, ())
            uses: tuple[Use, ...] = ("", "released")
            for use in (*uses, "copies") if version in route.copied else uses:
                cluster = cluster_name(name, protocol, use)
                clusters.append(replica_cluster(cluster, protocol, places))
                hosts = assignment(cluster, addresses, is_held=use != "copies")
                content[cluster] = _resources([hosts])
    content["clusters"] = _resources(clusters)
    content[HOLD] = _resources([hold_routes(routes)])
    for route in routes:
        content[table_name(route.spec.name)] = _resources([endpoint_routes(route)])
    content["listeners"] = _resources(
        [hold_listener(places), *(endpoint_listener(route, places) for route in routes)]
    )
    return content


def _resources(resources: Iterable[Json]) -> Json:
    listed = list(resources)
    digest = hashlib.sha256(repr(listed).encode()).hexdigest()[:12]
    return {"version_info": digest, "resources": listed}

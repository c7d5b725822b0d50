"""Ingresses and HTTPRoutes, by which a proxy of the cluster passes on requests from outside.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from timonel.engines.kubernetes.manifests import Manifest
from timonel.engines.kubernetes.settings import ClusterSettings

Kind = Literal["HTTPRoute", "Ingress"]


@dataclass(frozen=True)
class ServiceRoute:
    """Where a proxy of the cluster accepts requests for a Service object.

    Attributes:
        kind: Kind of the object with the rules.
        host: Name of the host.
        via: The Gateway, ``NAME`` or ``NAMESPACE/NAME``, or the class of the Ingress; empty for the
            cluster's default class.
    """

    kind: Kind
    host: str
    via: str


def route_of(name: str, settings: ClusterSettings) -> ServiceRoute | None:
    """Return the route to the Service object of a name; None without a domain."""
    if settings.domain is None:
        return None
    host = f"{name}.{settings.domain}"
    if settings.gateway is not None:
        return ServiceRoute("HTTPRoute", host, settings.gateway)
    return ServiceRoute("Ingress", host, settings.ingress_class or "")


def route_manifest(route: ServiceRoute, name: str, port: int) -> Manifest:
    """Return the manifest of a route to a port of the Service object of the same name."""
    if route.kind == "Ingress":
        return _manifest("networking.k8s.io/v1", route, name, _ingress(route, name, port))
    return _manifest("gateway.networking.k8s.io/v1", route, name, _http_route(route, name, port))


def failure_of(route: ServiceRoute, found: Mapping[str, Any]) -> str | None:
    """Return what keeps a proxy from using a route in the cluster; None if nothing is known."""
    status = found.get("status") or {}
    if route.kind == "Ingress":
        has_address = (status.get("loadBalancer") or {}).get("ingress")
        return None if has_address else "no controller has published an address of the Ingress"
    conditions = [
        condition
        for parent in status.get("parents") or ()
        for condition in parent.get("conditions") or ()
    ]
    if not conditions:
        return f"no controller has taken the route for the Gateway {route.via}"
    wrong = [each for each in conditions if each["status"] == "False"]
    if not wrong:
        return None
    reason = wrong[0].get("message") or wrong[0]["reason"]
    return f"the Gateway {route.via} does not use the route: {reason}"


def _http_route(route: ServiceRoute, name: str, port: int) -> Manifest:
    namespace, _, gateway = route.via.rpartition("/")
    parent = {"name": gateway, **({"namespace": namespace} if namespace else {})}
    rule = {
        "backendRefs": [{"name": name, "port": port}],
        # The endpoint has a time limit of its own; those of proxies may be shorter than its start.
        "timeouts": {"request": "0s"},
    }
    return {"parentRefs": [parent], "hostnames": [route.host], "rules": [rule]}


def _ingress(route: ServiceRoute, name: str, port: int) -> Manifest:
    path = {
        "path": "/",
        "pathType": "Prefix",
        "backend": {"service": {"name": name, "port": {"number": port}}},
    }
    rules = [{"host": route.host, "http": {"paths": [path]}}]
    return {**({"ingressClassName": route.via} if route.via else {}), "rules": rules}


def _manifest(version: str, route: ServiceRoute, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": version, "kind": route.kind, "metadata": {"name": name}, "spec": spec}

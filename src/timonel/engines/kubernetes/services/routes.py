"""Ingresses and HTTPRoutes, by which a proxy of the cluster passes on requests from outside.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timonel.engines.kubernetes.manifests import Manifest
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.service_spec import OutsideAddress

INGRESS, HTTP_ROUTE = "Ingress", "HTTPRoute"


def route(name: str, port: int, settings: ClusterSettings) -> Manifest | None:
    """Return the route to a Service object: an HTTPRoute or an Ingress; None without a domain.

    Args:
        name: Name of the Service object and of the route.
        port: Port of the Service object.
        settings: Settings of the cluster.
    """
    if settings.domain is None:
        return None
    host = f"{name}.{settings.domain}"
    if settings.gateway is not None:
        return _http_route(name, host, port, settings.gateway)
    return _ingress(name, host, port, settings.ingress_class)


def outside_address(found: Mapping[str, Any]) -> OutsideAddress:
    """Return the host of a route in the cluster, and what keeps its Gateway from using it."""
    spec = found["spec"]
    if found["kind"] == INGRESS:
        return OutsideAddress(host=spec["rules"][0]["host"])
    (gateway,) = spec["parentRefs"]
    name = "/".join(filter(None, (gateway.get("namespace"), gateway["name"])))
    conditions = [
        condition
        for parent in (found.get("status") or {}).get("parents") or ()
        for condition in parent.get("conditions") or ()
    ]
    wrong = [each for each in conditions if each["status"] == "False"]
    if not conditions:
        message: str | None = f"no controller has taken the route for the Gateway {name}"
    elif wrong:
        message = f"the Gateway {name} does not use the route: " + (
            wrong[0].get("message") or wrong[0]["reason"]
        )
    else:
        message = None
    return OutsideAddress(host=spec["hostnames"][0], message=message)


def _http_route(name: str, host: str, port: int, gateway: str) -> Manifest:
    namespace, _, gateway_name = gateway.rpartition("/")
    parent = {"name": gateway_name, **({"namespace": namespace} if namespace else {})}
    rule = {
        "backendRefs": [{"name": name, "port": port}],
        # The endpoint has a time limit of its own; those of proxies may be shorter than its start.
        "timeouts": {"request": "0s"},
    }
    spec = {"parentRefs": [parent], "hostnames": [host], "rules": [rule]}
    return _manifest("gateway.networking.k8s.io/v1", HTTP_ROUTE, name, spec)


def _ingress(name: str, host: str, port: int, ingress_class: str | None) -> Manifest:
    path = {
        "path": "/",
        "pathType": "Prefix",
        "backend": {"service": {"name": name, "port": {"number": port}}},
    }
    spec = {
        **({"ingressClassName": ingress_class} if ingress_class else {}),
        "rules": [{"host": host, "http": {"paths": [path]}}],
    }
    return _manifest("networking.k8s.io/v1", INGRESS, name, spec)


def _manifest(version: str, kind: str, name: str, spec: Mapping[str, Any]) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}

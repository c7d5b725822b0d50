"""Service objects, at which clients reach the replicas of a service under a name."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from timonel.engines.kubernetes.api import Api, Object
from timonel.engines.kubernetes.names import MANAGED
from timonel.errors import AlreadyExistsError, EngineError, NotFoundError

EXPOSED_LABEL = "timonel.dev/exposed"
"""On Service objects that `Exposure` has created: their name."""

_KIND = "Service"


class Exposure:
    """Service objects of one namespace. Thread-safe; holds no state.

    Args:
        api: The cluster.
        service_type: Type of new Service objects: ``ClusterIP`` or ``LoadBalancer``.
    """

    def __init__(self, api: Api, service_type: str = "ClusterIP") -> None:
        self._api = api
        self._type = service_type

    def expose(self, name: str, selector: Mapping[str, str], port: int) -> None:
        """Create a Service object, or change it. Idempotent.

        Args:
            name: Its name.
            selector: Labels of the pods.
            port: Its port, at which the pods listen.

        Raises:
            EngineError: Another Service has the name, or the cluster refuses.
        """
        spec = {
            "type": self._type,
            "selector": dict(selector),
            "ports": [{"name": "endpoint", "port": port, "targetPort": port}],
        }
        found = self._api.find(_KIND, name) or self._create(name, spec)
        if not _is_own(found):
            raise self._taken(name)
        if _differs(found["spec"], spec):
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            self._api.patch(_KIND, name, {"metadata": version, "spec": spec})

    def conceal(self, name: str) -> None:
        """Delete the Service object that `expose` has created. Idempotent."""
        found = self._api.find(_KIND, name)
        if found is not None and _is_own(found):
            with contextlib.suppress(NotFoundError):
                self._api.delete(_KIND, name, uid=found["metadata"]["uid"])

    def address(self, name: str, port: int) -> str:
        """Return ``host:port`` for clients: of the load balancer, or else within the cluster."""
        found = self._api.find(_KIND, name) or {}
        balancer = (found.get("status") or {}).get("loadBalancer") or {}
        for each in balancer.get("ingress") or ():
            if host := each.get("hostname") or each.get("ip"):
                return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return f"{name}.{self._api.namespace}.svc:{port}"

    def _create(self, name: str, spec: Object) -> Object:
        metadata = {"name": name, "labels": {**MANAGED, EXPOSED_LABEL: name}}
        manifest = {"apiVersion": "v1", "kind": _KIND, "metadata": metadata, "spec": spec}
        try:
            return self._api.create(manifest)
        except AlreadyExistsError:  # created meanwhile
            return self._api.get(_KIND, name)

    def _taken(self, name: str) -> EngineError:
        namespace = self._api.namespace
        return EngineError(
            f"namespace '{namespace}' has another Service named '{name}'",
            hint=f"choose another name, or delete it with 'kubectl delete service {name} "
            f"-n {namespace}'",
        )


def _is_own(found: Object) -> bool:
    return EXPOSED_LABEL in (found["metadata"].get("labels") or {})


def _differs(found: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Return whether a Service needs a change; the cluster adds fields to those of `spec`."""
    ports = found.get("ports") or []
    return (
        found.get("type") != spec["type"]
        or found.get("selector") != spec["selector"]
        or [(each["port"], each.get("targetPort")) for each in ports]
        != [(each["port"], each["targetPort"]) for each in spec["ports"]]
    )

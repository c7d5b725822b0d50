"""Service objects, at which clients reach the replicas of a service, and routes to them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from timonel.engines.kubernetes.api import Api, Object
from timonel.engines.kubernetes.manifests import Manifest
from timonel.engines.kubernetes.names import MANAGED
from timonel.engines.kubernetes.services.routes import outside_address, route
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.service_spec import OutsideAddress
from timonel.errors import AlreadyExistsError, EngineError, NotFoundError

EXPOSED_LABEL = "timonel.dev/exposed"
"""On Service objects that `Exposure` has created, and on routes to them: their name."""
ROUTE_ANNOTATION = "timonel.dev/route"
"""On the same Service objects: the kind of the route."""

_KIND = "Service"
_H2C = "kubernetes.io/h2c"
"""Protocol of a port that Gateways use over HTTP/2 without TLS, as gRPC needs (KEP 3726)."""


class Exposure:
    """Service objects of one namespace, and routes to them. Thread-safe; holds no state.

    Args:
        api: The cluster.
        settings: Settings of the cluster: the type of Service objects, and the routes.
    """

    def __init__(self, api: Api, settings: ClusterSettings) -> None:
        self._api = api
        self._settings = settings

    def manifests(
        self, name: str, selector: Mapping[str, str], port: int, *, has_tls: bool
    ) -> list[Manifest]:
        """Return the Service object, and the route to it if there is to be one.

        Args:
            name: Their name.
            selector: Labels of the pods.
            port: The port of the Service object, at which the pods listen.
            has_tls: Whether it takes TLS only. Such a port gets no route, as a proxy would have to
                be told which certificate to expect.
        """
        wanted = None if has_tls else route(name, port, self._settings)
        entry: dict[str, Any] = {"name": "endpoint", "port": port, "targetPort": port}
        metadata: dict[str, Any] = {"name": name, "labels": {**MANAGED, EXPOSED_LABEL: name}}
        if wanted is not None:
            metadata["annotations"] = {ROUTE_ANNOTATION: wanted["kind"]}
            wanted["metadata"]["labels"] = metadata["labels"]
            if self._settings.gateway is not None:
                entry["appProtocol"] = _H2C
        spec = {
            "type": self._settings.service_type or "ClusterIP",
            "selector": dict(selector),
            "ports": [entry],
        }
        service = {"apiVersion": "v1", "kind": _KIND, "metadata": metadata, "spec": spec}
        return [service] if wanted is None else [service, wanted]

    def expose(self, name: str, selector: Mapping[str, str], port: int, *, has_tls: bool) -> None:
        """Create the objects of `manifests`, or change them. Idempotent.

        Raises:
            EngineError: Another object has the name, or the cluster refuses.
        """
        service, *routes = self.manifests(name, selector, port, has_tls=has_tls)
        found = self._api.find(_KIND, name) or self._create(service)
        if not _is_own(found):
            raise self._taken(_KIND, name)
        before = _route_of(found)
        # The annotation names a route before it exists, and until it is gone.
        if before is not None and before not in [each["kind"] for each in routes]:
            self._remove_route(before, found)
        if _differs(found, service):
            annotations = {ROUTE_ANNOTATION: _route_of(service)}
            metadata = {
                "resourceVersion": found["metadata"]["resourceVersion"],
                "annotations": annotations,
            }
            self._api.patch(_KIND, name, {"metadata": metadata, "spec": service["spec"]})
        for manifest in routes:
            self._put_route(manifest, found)

    def conceal(self, name: str) -> None:
        """Delete the Service object that `expose` has created; its route goes too. Idempotent."""
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

    def outside(self, name: str) -> OutsideAddress | None:
        """Return the address by which a route is reached; None without one."""
        found = self._api.find(_KIND, name)
        kind = None if found is None else _route_of(found)
        if kind is None:
            return None
        existing = self._api.find(kind, name)
        return None if existing is None else outside_address({**existing, "kind": kind})

    def _create(self, manifest: Manifest) -> Object:
        try:
            return self._api.create(manifest)
        except AlreadyExistsError:  # created meanwhile
            return self._api.get(_KIND, manifest["metadata"]["name"])

    def _put_route(self, manifest: Manifest, service: Object) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        owner = {"apiVersion": "v1", "kind": _KIND, "name": name, "uid": _uid(service)}
        owned = {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}
        found = self._api.find(kind, name)
        if found is None:
            self._api.create(owned)
        elif not _is_owned(found, service):
            raise self._taken(kind, name)
        else:
            self._api.patch(kind, name, {"spec": manifest["spec"]})

    def _remove_route(self, kind: str, service: Object) -> None:
        name = service["metadata"]["name"]
        found = self._api.find(kind, name)
        if found is not None and _is_owned(found, service):
            with contextlib.suppress(NotFoundError):
                self._api.delete(kind, name, uid=_uid(found))

    def _taken(self, kind: str, name: str) -> EngineError:
        namespace = self._api.namespace
        return EngineError(
            f"namespace '{namespace}' has another {kind} named '{name}'",
            hint=f"choose another name, or delete it with 'kubectl delete {kind.lower()} {name} "
            f"-n {namespace}'",
        )


def _uid(found: Object) -> str:
    uid: str = found["metadata"]["uid"]
    return uid


def _is_own(found: Object) -> bool:
    return EXPOSED_LABEL in (found["metadata"].get("labels") or {})


def _is_owned(found: Object, service: Object) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return any(each["uid"] == _uid(service) for each in owners)


def _route_of(service: Mapping[str, Any]) -> str | None:
    """Return the kind of the route to a Service object."""
    annotations = service["metadata"].get("annotations") or {}
    return annotations.get(ROUTE_ANNOTATION)


def _differs(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a Service object needs a change; the cluster adds fields to those wanted."""

    def ports(spec: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        keys = ("port", "targetPort", "appProtocol")
        return [tuple(each.get(key) for key in keys) for each in spec.get("ports") or ()]

    before, after = found["spec"], wanted["spec"]
    return (
        _route_of(found) != _route_of(wanted)
        or any(before.get(key) != after[key] for key in ("type", "selector"))
        or ports(before) != ports(after)
    )

"""Service objects, at which clients reach the replicas of a service, and routes to them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from timonel.engines.kubernetes.api import Api, Object
from timonel.engines.kubernetes.manifests import Manifest
from timonel.engines.kubernetes.names import MANAGED
from timonel.engines.kubernetes.services.routes import (
    ServiceRoute,
    failure_of,
    route_manifest,
    route_of,
)
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.service_spec import OutsideAddress
from timonel.errors import AlreadyExistsError, EngineError, NotFoundError

EXPOSED_LABEL = "timonel.dev/exposed"
"""On Service objects that `Exposure` has created, and on routes to them: their name."""
ROUTE_ANNOTATION = "timonel.dev/route"
"""On the same Service objects: the route to it, as a JSON object."""

_KIND = "Service"
_H2C = "kubernetes.io/h2c"
"""Protocol of a port that Gateways use over HTTP/2 without TLS, as gRPC needs (KEP 3726)."""


class Exposure:
    """Service objects of one namespace, and routes to them. Thread-safe; holds no state.

    Args:
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
            port: The port of the Service object, at which the pods listen.
            has_tls: Whether it accepts TLS only. Such a port gets no route, as a proxy would have
                to be told which certificate to expect.
        """
        route = None if has_tls else route_of(name, self._settings)
        entry: dict[str, Any] = {"name": "endpoint", "port": port, "targetPort": port}
        if route is not None and route.kind == "HTTPRoute":
            entry["appProtocol"] = _H2C
        spec = {
            "type": self._settings.service_type or "ClusterIP",
            "selector": dict(selector),
            "ports": [entry],
        }
        metadata: dict[str, Any] = {"name": name, "labels": {**MANAGED, EXPOSED_LABEL: name}}
        service = {"apiVersion": "v1", "kind": _KIND, "metadata": metadata, "spec": spec}
        if route is None:
            return [service]
        metadata["annotations"] = {ROUTE_ANNOTATION: json.dumps(asdict(route))}
        manifest = route_manifest(route, name, port)
        manifest["metadata"]["labels"] = metadata["labels"]
        return [service, manifest]

    def expose(self, name: str, selector: Mapping[str, str], port: int, *, has_tls: bool) -> None:
        """Create the objects of `manifests`, or change them. Idempotent."""
        service, *routes = self.manifests(name, selector, port, has_tls=has_tls)
        found = self._api.find(_KIND, name) or self._create(service)
        if not _is_own(found):
            raise self._taken(_KIND, name)
        before, after = _route_to(found), _route_to(service)
        # The annotation names a route before it exists, and until it is gone.
        if before is not None and before != after:
            self._remove_route(before, found)
        if before != after or _differs(found, service):
            metadata = {
                "resourceVersion": found["metadata"]["resourceVersion"],
                "annotations": {ROUTE_ANNOTATION: _annotation(service)},
            }
            self._api.patch(_KIND, name, {"metadata": metadata, "spec": service["spec"]})
        for manifest in routes:
            self._put_route(manifest, found)

    def check(self, name: str, *, has_tls: bool) -> None:
        """Have the cluster check the route that `expose` would create; change nothing."""
        route = None if has_tls else route_of(name, self._settings)
        if route is not None:
            with contextlib.suppress(AlreadyExistsError):
                self._api.create(route_manifest(route, name, 1), dry_run=True)

    def conceal(self, name: str) -> None:
        """Delete the Service object that `expose` has created; its route goes too. Idempotent."""
        found = self._api.find(_KIND, name)
        if found is not None and _is_own(found):
            with contextlib.suppress(NotFoundError):
                self._api.delete(_KIND, name, uid=_uid(found))

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
        service = self._api.find(_KIND, name)
        route = None if service is None else _route_to(service)
        if route is None:
            return None
        try:
            found = self._api.find(route.kind, name)
        except EngineError as error:
            return OutsideAddress(host=route.host, message=error.message)
        message = f"there is no {route.kind}" if found is None else failure_of(route, found)
        return OutsideAddress(host=route.host, message=message)

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
        elif not _has(found["spec"], manifest["spec"]):
            self._api.patch(kind, name, {"spec": manifest["spec"]})

    def _remove_route(self, route: ServiceRoute, service: Object) -> None:
        name = service["metadata"]["name"]
        found = self._api.find(route.kind, name)
        if found is not None and _is_owned(found, service):
            with contextlib.suppress(NotFoundError):
                self._api.delete(route.kind, name, uid=_uid(found))

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


def _annotation(service: Mapping[str, Any]) -> str | None:
    return (service["metadata"].get("annotations") or {}).get(ROUTE_ANNOTATION)


def _route_to(service: Mapping[str, Any]) -> ServiceRoute | None:
    """Return the route to a Service object; None if there is none."""
    text = _annotation(service)
    return None if text is None else ServiceRoute(**json.loads(text))


def _has(found: Any, wanted: Any) -> bool:
    """Return whether an object has all that is wanted; the cluster adds fields with defaults."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _has(found.get(key), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list) and len(found) == len(wanted) and all(map(_has, found, wanted))
        )
    return bool(found == wanted)


def _differs(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a Service object needs a change; the cluster adds fields to those wanted."""

    def ports(spec: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        keys = ("port", "targetPort", "appProtocol")
        return [tuple(each.get(key) for key in keys) for each in spec.get("ports") or ()]

    before, after = found["spec"], wanted["spec"]
    return any(before.get(key) != after[key] for key in ("type", "selector")) or ports(
        before
    ) != ports(after)

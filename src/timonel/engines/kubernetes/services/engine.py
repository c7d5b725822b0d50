"""Service engine of Kubernetes: services as Deployments of a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

from timonel.engines.kubernetes import pods
from timonel.engines.kubernetes.api import Api, Object
from timonel.engines.kubernetes.api_errors import ConflictError
from timonel.engines.kubernetes.manifests import Manifest, owned
from timonel.engines.kubernetes.names import SERVICE_LABEL, all_services, service_objects
from timonel.engines.kubernetes.services.autoscaler import KIND, autoscaler, failure_of, is_owned
from timonel.engines.kubernetes.services.documents import ClusterDocuments
from timonel.engines.kubernetes.services.exposure import Exposure
from timonel.engines.kubernetes.services.leadership import Leadership
from timonel.engines.kubernetes.services.log import replica_lines
from timonel.engines.kubernetes.services.manifests import applied, service_manifests
from timonel.engines.kubernetes.services.status import is_service, needs_events, service_status
from timonel.engines.kubernetes.services.view import ObjectView
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.kubernetes.variables import POD_NAME
from timonel.engines.kubernetes.watched import Watched
from timonel.engines.service_spec import AutoscalerSpec, OutsideAddress, ServiceSpec, ServiceStatus
from timonel.engines.services import ServiceEngine
from timonel.errors import AlreadyExistsError, EngineError, NotFoundError, SpecError, TimonelError
from timonel.storage import Workspace

_CONFLICTS_S = 30.0
_POLL_S = 0.5
_REMOVAL_S = 20.0
_FORCE_S = 30.0
"""Shortest time between two requests to delete a pod by force."""
_KILLING = {"reason": "Killing", "involvedObject.kind": "Pod"}

logger = logging.getLogger(__name__)


class KubernetesServiceEngine(ServiceEngine):
    """Runs services in the namespace of the user's context, as Deployments. Thread-safe.

    All state is in the cluster. Frequent reads of the status come from watches.

    Kubernetes restarts a replica that fails again and again after 10 s, 20 s, ... up to 5 minutes,
    as its nodes are configured, whatever ``restart_delay_s`` says. Settings of the cluster, such as
    the default image, take effect with the next revision of a service.

    Args:
        api: The cluster.
        settings: Settings of the cluster.
        pod: Name of the pod of this process, if it is a replica of a service.
    """

    name = "kubernetes"

    def __init__(self, api: Api, settings: ClusterSettings, pod: str | None = None) -> None:
        self._api = api
        self._pod = pod
        self._settings = settings.model_copy(update={"namespace": api.namespace})
        self._deployments = ObjectView(Watched(api, "Deployment", all_services()))
        self._pods = ObjectView(Watched(api, "Pod", all_services()))
        self._events = ObjectView(Watched(api, "Event", {}, _KILLING))
        self._exposure = Exposure(api, self._settings)
        self._documents: dict[str, ClusterDocuments] = {}
        self._leaderships: dict[str, Leadership] = {}
        self._forced: dict[str, float] = {}

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """Return the engine of the cluster that kubectl would use.

        Raises:
            SpecError: Pods do not see the workspace.
            InputError: There is no such cluster.
        """
        settings = ClusterSettings.of(os.environ)
        settings.check_visible(workspace, "services")
        return cls(Api.connect(settings), settings, os.environ.get(POD_NAME))

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of the cluster, but for context and namespace."""
        return self._settings.variables()

    @property
    def default_image(self) -> str | None:
        """Image of the settings."""
        return self._settings.image

    def close(self) -> None:
        """Stop watching the cluster, within 30 s, and let another replica lead."""
        for view in (self._deployments, self._pods, self._events):
            view.close()
        for store in self._documents.values():
            store.close()
        for leadership in self._leaderships.values():
            leadership.release()

    def apply(self, spec: ServiceSpec) -> None:
        """Create a service or change it; return when the cluster has accepted all of its objects.

        Raises:
            SpecError: The revision was applied with other contents, or Kubernetes cannot run the
                service as it is specified.
            EngineError: The service is being deleted, or the cluster refuses it; nothing of a new
                service is left.
        """
        manifests = service_manifests(spec, self._settings)
        try:
            self._update(manifests, spec)
        except NotFoundError:
            self._create(manifests, spec)

    def preview(self, spec: ServiceSpec, scaling: AutoscalerSpec | None = None) -> list[Manifest]:
        """Return a service's manifests; `apply` makes the first one the owner of the others."""
        manifests = service_manifests(spec, self._settings)
        return manifests if scaling is None else [*manifests, autoscaler(spec.name, scaling)]

    def scale(self, name: str, replicas: int) -> None:
        """Set the number of replicas; return when the cluster has recorded it."""
        if replicas < 0:
            raise SpecError(f"expected 0 or more replicas of {name}, got {replicas}")
        _check_not_deleted(self._deployment(name))
        try:
            self._api.patch(
                "Deployment", name, {"spec": {"replicas": replicas}}, subresource="scale"
            )
        except NotFoundError:
            raise _unknown(name) from None
        self._read_again(name)

    def service(self, name: str) -> ServiceStatus:
        """Return the current status of a service."""
        deployment = self._deployments.objects().get(name)
        if deployment is None:
            raise _unknown(name)
        (status,) = self._statuses([deployment])
        return status

    def services(self) -> list[ServiceStatus]:
        """Return the status of every service in the namespace, by name."""
        deployments = self._deployments.objects()
        return self._statuses([deployments[name] for name in sorted(deployments)])

    def logs(self, name: str, replica: str, *, follow: bool = False) -> Iterator[str]:
        """Yield lines of a replica's output since its last start, oldest first.

        With `follow`, also those of its next starts.
        """
        known = [each.name for each in self.service(name).replicas]
        if replica not in known:
            raise NotFoundError(
                f"{name} has no replica {replica}",
                hint=f"its replicas: {', '.join(known) or 'none'}",
            )
        return replica_lines(self._api, replica, follow=follow)

    def delete(self, name: str) -> None:
        """Request the end of a service; it disappears when its pods are gone.

        A pod on a lost node goes when a process reads the status of the service 10 s after the end
        of the pod's grace period.
        """
        deployment = self._deployment(name)
        if "deletionTimestamp" in deployment["metadata"]:
            return
        uid = deployment["metadata"]["uid"]
        try:
            self._api.delete("Deployment", name, propagation="Foreground", uid=uid)
        except NotFoundError:
            raise _unknown(name) from None
        self._read_again(name)

    def documents(self, folder: str) -> ClusterDocuments:
        """Return the documents of a folder, kept in ConfigMaps."""
        if folder not in self._documents:
            # A command reads a few documents, a replica all of them all the time.
            is_watching = self._pod is not None
            store = ClusterDocuments(self._api, folder, is_watching=is_watching)
            self._documents.setdefault(folder, store)
        return self._documents[folder]

    def confidential(self, folder: str) -> ClusterDocuments:
        """Return the documents of a folder that are kept in Secrets.

        Replicas may read those that they know by name. A watch would take the right to list all
        Secrets of the namespace.
        """
        return ClusterDocuments(self._api, folder, kind="Secret")

    def leads(self, service: str) -> bool:
        """Return whether this replica makes the decisions; true outside of the cluster."""
        if self._pod is None:
            return True
        if service not in self._leaderships:
            owner = ("Deployment", service)
            leadership = Leadership(self._api, f"{service}-leader", self._pod, owner=owner)
            self._leaderships.setdefault(service, leadership)
        return self._leaderships[service].holds()

    def autoscale(self, name: str, rules: AutoscalerSpec | None) -> None:
        """Have a HorizontalPodAutoscaler scale a service; None: no longer."""
        deployment = self._deployment(name)
        uid = deployment["metadata"]["uid"]
        if rules is None:
            found = self._api.find(KIND, name)
            if found is not None and is_owned(found, uid):  # else it is the user's own
                with contextlib.suppress(NotFoundError):
                    self._api.delete(KIND, name, uid=found["metadata"]["uid"])
            return
        (manifest,) = owned([deployment, autoscaler(name, rules)], uid)
        self._put(manifest, uid)
        failure = failure_of(self._api.find(KIND, name) or manifest)
        if failure is not None:
            raise EngineError(
                f"the cluster cannot scale {name}: {failure}",
                hint=f"see 'kubectl describe hpa {name}'",
            )

    def check_autoscaler(self, rules: AutoscalerSpec) -> None:
        """Have the cluster check the rules of a HorizontalPodAutoscaler."""
        self._api.create(autoscaler("check", rules), dry_run=True)

    def expose(self, name: str, service: str, port: int, *, has_tls: bool) -> None:
        """Have a port of a service's pods accept connections at a Service object."""
        self._exposure.expose(name, service_objects(service), port, has_tls=has_tls)

    def check_exposed(self, name: str, *, has_tls: bool) -> None:
        """Have the cluster check the Ingress or HTTPRoute that the settings ask for."""
        self._exposure.check(name, has_tls=has_tls)

    def preview_exposed(
        self, name: str, service: str, port: int, *, has_tls: bool
    ) -> list[Manifest]:
        """Return the Service object, and the route to it if the settings ask for one."""
        return self._exposure.manifests(name, service_objects(service), port, has_tls=has_tls)

    def conceal(self, name: str) -> None:
        """Delete the Service object of that name."""
        self._exposure.conceal(name)

    def address(self, name: str, host: str, port: int) -> str:
        """Return the address of a Service object: its own, not that of a replica."""
        del host
        return self._exposure.address(name, port)

    def outside(self, name: str) -> OutsideAddress | None:
        """Return the host of the Ingress or HTTPRoute of that name."""
        return self._exposure.outside(name)

    def forward_command(self, name: str, port: int) -> str:
        """Return the command that makes a Service object reachable from this machine."""
        return f"kubectl port-forward -n {self._api.namespace} service/{name} {port}:{port}"

    def _statuses(self, deployments: list[Object]) -> list[ServiceStatus]:
        found: dict[str, list[Object]] = {each["metadata"]["name"]: [] for each in deployments}
        for pod in self._pods.objects().values():
            found.get(pod["metadata"]["labels"].get(SERVICE_LABEL, ""), []).append(pod)
        has_kills = any(needs_events(pod) for each in found.values() for pod in each)
        events = list(self._events.objects().values()) if has_kills else []
        now = time.time()
        for each in deployments:
            if "deletionTimestamp" in each["metadata"]:
                self._delete_lost(found[each["metadata"]["name"]], now)
        return [
            service_status(each, found[each["metadata"]["name"]], events, now)
            for each in deployments
        ]

    def _delete_lost(self, found: list[Object], now: float) -> None:
        """Delete pods of a deleted service by force if their nodes are lost.

        Otherwise the service would not go before its nodes are back.
        """
        for pod in found:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            if not pods.is_lost(pod, now) or now - self._forced.get(uid, 0.0) < _FORCE_S:
                continue
            self._forced[uid] = now
            logger.warning("the node of pod %s is lost: deleting the pod by force", name)
            try:
                self._api.delete("Pod", name, grace_s=0, uid=uid)
            except (NotFoundError, ConflictError):
                continue  # it is gone
            except TimonelError as error:
                logger.warning("%s", error)

    def _create(self, manifests: list[Manifest], spec: ServiceSpec) -> None:
        try:
            uid = self._api.create(manifests[0])["metadata"]["uid"]
        except AlreadyExistsError:  # another process applies it too
            self._update(manifests, spec)
            return
        try:
            self._update(manifests, spec)
        except BaseException:
            with contextlib.suppress(NotFoundError, ConflictError):  # another process took over
                self._remove_unfinished(spec.name, uid)
            raise

    def _remove_unfinished(self, name: str, uid: str) -> None:
        deployment = self._deployment(name)
        if deployment["spec"].get("paused"):
            version = deployment["metadata"]["resourceVersion"]
            self._api.delete("Deployment", name, uid=uid, version=version)

    def _update(self, manifests: list[Manifest], spec: ServiceSpec) -> None:
        """Create what a Deployment needs, then change the Deployment."""
        prepared: str | None = None
        deadline = time.monotonic() + _CONFLICTS_S
        while True:
            deployment = self._deployment(spec.name)
            _check_not_deleted(deployment)
            changed = applied(deployment, manifests[0], spec)
            if changed is None:
                return
            uid = deployment["metadata"]["uid"]
            if prepared != uid:
                for manifest in owned(manifests, uid):
                    self._put(manifest, uid)
                # Read it again: the cluster itself changes it while replicas start and stop.
                prepared = uid
                continue
            try:
                self._deployments.record(self._api.replace(changed))
            except ConflictError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def _put(self, manifest: Manifest, owner: str) -> None:
        """Create an object of a service, or change it to the manifest."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        deadline = time.monotonic() + _REMOVAL_S
        while True:
            try:
                self._api.create(manifest)
            except AlreadyExistsError:
                is_done = self._change(manifest, owner)
            else:
                is_done = True
            if is_done:
                return
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the cluster has not removed the {kind} '{name}' of an earlier service",
                    hint=f"delete it with 'kubectl delete {kind.lower()} {name}'",
                )
            time.sleep(_POLL_S)

    def _change(self, manifest: Manifest, owner: str) -> bool:
        """Change an object of a service to the manifest; False if it is being removed."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            owners = self._api.get(kind, name)["metadata"].get("ownerReferences") or [{}]
            if owners[0].get("uid") == owner:
                if body := _body(manifest):
                    self._api.patch(kind, name, body)
                return True
        except NotFoundError:
            return False
        if (owners[0].get("kind"), owners[0].get("name")) == ("Deployment", name):
            return False  # of a service of that name that was deleted
        raise EngineError(
            f"the cluster has a {kind} '{name}', which the service needs",
            hint="choose another name for the service",
        )

    def _deployment(self, name: str) -> Object:
        """Read the Deployment of a service."""
        try:
            found = self._api.get("Deployment", name)
        except NotFoundError:
            raise _unknown(name) from None
        if not is_service(found):
            raise EngineError(
                f"the cluster has a Deployment '{name}', which is not a service of timonel",
                hint="choose another name for the service",
            )
        return found

    def _read_again(self, name: str) -> None:
        """Read a Deployment after a change, so that no later read shows an older one."""
        found = self._api.find("Deployment", name)
        if found is None:
            self._deployments.forget(name)
        else:
            self._deployments.record(found)


def _body(manifest: Mapping[str, Any]) -> dict[str, Any]:
    head = {"apiVersion", "kind", "metadata", "roleRef"}
    return {key: value for key, value in manifest.items() if key not in head}


def _check_not_deleted(deployment: Object) -> None:
    metadata = deployment["metadata"]
    if "deletionTimestamp" in metadata:
        raise EngineError(
            f"the service {metadata['name']} is being deleted", hint="wait until it is gone"
        )


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"no such service: {name}", hint="apply it first")

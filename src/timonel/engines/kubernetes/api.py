"""Client of the API server: objects as JSON, over the official client's transport."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote

from timonel._version import __version__
from timonel.engines.kubernetes.api_errors import READS, ApiCall, may_retry, refused, unreachable
from timonel.engines.kubernetes.kubeconfig import authority_of, open_client
from timonel.engines.kubernetes.rights import ClusterRight
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import NotFoundError
from timonel.processes.backoff import backoff_s

_RESOURCES = {
    "ConfigMap": ("v1", "configmaps"),
    "Deployment": ("apps/v1", "deployments"),
    "Event": ("v1", "events"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "horizontalpodautoscalers"),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", "httproutes"),
    "Ingress": ("networking.k8s.io/v1", "ingresses"),
    "Job": ("batch/v1", "jobs"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "LocalQueue": ("kueue.x-k8s.io/v1beta2", "localqueues"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Pod": ("v1", "pods"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "Role": ("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": ("v1", "secrets"),
    "SelfSubjectAccessReview": ("authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
}
_OUTSIDE_NAMESPACES = {"SelfSubjectAccessReview"}
_VERSION = "Version"
_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
_TIMEOUT_S = 30.0
_WATCH_S = 30
_SILENCE_S = 10.0
_ATTEMPTS = 4
_BACKOFF_S = 0.5
_SHOWN_BYTES = 200

Object = dict[str, Any]
ObjectList = list[Object]
Event = tuple[str, Object]
"""Kind of a change (ADDED, MODIFIED, DELETED or BOOKMARK), and the object."""


class Api:
    """Objects of one namespace. Thread-safe.

    All methods but `watch` and `log_lines` wait up to 30 s for an answer. Reads are repeated a few
    times when the server does not answer or has an error; writes only when it asks for that. They
    raise:

    - UnavailableError: The server does not answer, or asks to try later.
    - EngineError: It refuses: credentials, rights, quota, or admission.
    - NotFoundError: The object or the namespace does not exist.
    - AlreadyExistsError, ConflictError: Another object or version is in the way.
    - SpecError: The server calls the object invalid.

    Args:
        client: The official client's ``ApiClient``.
    """

    def __init__(
        self, namespace: str, client: Any, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.namespace = namespace
        self._client = client
        self._sleep = sleep
        client.user_agent = f"timonel/{__version__}"

    @classmethod
    def connect(cls, settings: ClusterSettings, environ: Mapping[str, str] = os.environ) -> Self:
        """Return a client of the user's cluster, or of the one that this process runs in.

        As kubectl, it reads the files of KUBECONFIG or ``~/.kube/config``; without such a file, a
        process in a pod uses its ServiceAccount. Sends no request.
        """
        client, namespace = open_client(settings.context, environ)
        return cls(settings.namespace or namespace, client)

    @property
    def server(self) -> str:
        """Address of the server."""
        return str(self._client.configuration.host)

    @property
    def authority(self) -> str | None:
        """Digest of the authority that verifies the server; see `authority_of`."""
        return authority_of(self._client.configuration)

    def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object and return it, with what the server added.

        Args:
            manifest: The object; unknown fields are an error.
            dry_run: Only have the server check it.
        """
        query = {"fieldValidation": "Strict", "fieldManager": "timonel"}
        if dry_run:
            query["dryRun"] = "All"
        call = self._call("create", manifest["kind"], manifest["metadata"].get("name"))
        return self._json(call, query=query, body=manifest)

    def get(self, kind: str, name: str) -> Object:
        """Return an object."""
        return self._json(self._call("get", kind, name))

    def find(self, kind: str, name: str) -> Object | None:
        """Return an object; None if there is none."""
        try:
            return self.get(kind, name)
        except NotFoundError:
            return None

    def list(self, kind: str, labels: Mapping[str, str]) -> ObjectList:
        """Return all objects with these labels."""
        items: ObjectList = self._listed(kind, labels, None)["items"]
        return items

    def list_at(
        self, kind: str, labels: Mapping[str, str], fields: Mapping[str, str] | None = None
    ) -> tuple[ObjectList, str]:
        """Return all objects with these labels, and the version of this list for `watch`.

        Args:
            fields: Their fields, of those that the server can select by.
        """
        answer = self._listed(kind, labels, fields)
        return answer["items"], answer["metadata"]["resourceVersion"]

    def watch(
        self,
        kind: str,
        labels: Mapping[str, str],
        version: str,
        fields: Mapping[str, str] | None = None,
    ) -> Iterator[Event]:
        """Yield changes of objects as they happen; ends after 30 s.

        Args:
            version: Version after which changes are reported.
            fields: Their fields, as in `list_at`.
        """
        call = self._call("watch", kind, None)
        query = {
            **_selectors(labels, fields),
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        for line in self._lines(call, query, _WATCH_S + _SILENCE_S):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise refused(call, event["object"].get("code", 500), event["object"])
            yield event["type"], event["object"]

    def replace(self, manifest: Mapping[str, Any]) -> Object:
        """Replace an object by a manifest with its ``metadata.resourceVersion``, and return it.

        Other changes since that version are a ConflictError.
        """
        return self._json(
            self._call("update", manifest["kind"], manifest["metadata"]["name"]),
            query={"fieldValidation": "Strict", "fieldManager": "timonel"},
            body=manifest,
        )

    def patch(
        self, kind: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> Object:
        """Change fields of an object, as a JSON merge patch, and return it.

        With a ``metadata.resourceVersion`` in the patch, other changes since are a ConflictError.

        Args:
            subresource: Subresource that has the fields, such as ``status`` or ``scale``.
        """
        return self._json(
            self._call("patch", kind, name, subresource),
            query={"fieldManager": "timonel"},
            body=body,
            content_type="application/merge-patch+json",
        )

    def delete(
        self,
        kind: str,
        name: str,
        *,
        grace_s: int | None = None,
        propagation: str = "Background",
        uid: str | None = None,
        version: str | None = None,
    ) -> None:
        """Delete an object, and those that it owns.

        Args:
            grace_s: Seconds that a pod has to end; None: as the pod says; 0: without waiting for
                its node.
            propagation: What happens to objects that it owns.
            uid: Delete only the object with this UID; another one of that name is a ConflictError.
            version: Delete only this version of it, in the same way.
        """
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            # Without it, what a Job owns is left behind.
            "propagationPolicy": propagation,
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        conditions = {"uid": uid, "resourceVersion": version}
        if conditions := {key: value for key, value in conditions.items() if value is not None}:
            options["preconditions"] = conditions
        self._json(self._call("delete", kind, name), body=options)

    def version(self) -> str:
        """Return the version of the server, such as v1.37.0."""
        call = ApiCall("get", _VERSION, "version", None, self.namespace, self.server)
        return str(self._json(call)["gitVersion"])

    def allows(self, right: ClusterRight) -> bool:
        """Return whether the user has a right in the namespace."""
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "namespace": self.namespace,
            "group": right.group,
            "resource": resource,
            "verb": right.verb,
            **({"subresource": subresource} if subresource else {}),
        }
        review = {
            "apiVersion": _RESOURCES["SelfSubjectAccessReview"][0],
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self._json(self._call("create", "SelfSubjectAccessReview", None), body=review)
        return bool(answer["status"]["allowed"])

    def log_lines(
        self, name: str, container: str, *, since: str | None = None, follow: bool = False
    ) -> Iterator[str]:
        """Yield lines of a container's output, each after its time (RFC 3339) and a space.

        Args:
            container: The container; only its last start has lines.
            since: Time of the first line; seconds count.
            follow: Continue until the container ends, or 40 s without output.
        """
        query = {"container": container, "timestamps": "true"}
        if since is not None:
            query["sinceTime"] = since
        if follow:
            query["follow"] = "true"
        call = self._call("get", "Pod", name, "log")
        for line in self._lines(call, query, _WATCH_S + _SILENCE_S):
            yield line.decode(errors="replace")

    def _call(self, verb: str, kind: str, name: str | None, subresource: str = "") -> ApiCall:
        resource = _RESOURCES[kind][1] + (f"/{subresource}" if subresource else "")
        return ApiCall(verb, kind, resource, name, self.namespace, self.server)

    def _listed(
        self, kind: str, labels: Mapping[str, str], fields: Mapping[str, str] | None
    ) -> Object:
        return self._json(self._call("list", kind, None), query=_selectors(labels, fields))

    def _json(self, call: ApiCall, **options: Any) -> Object:
        answer: Object = json.loads(self._send(call, **options))
        return answer

    def _send(
        self,
        call: ApiCall,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send a request until it has an answer that is final, and return its content."""
        deadline = time.monotonic() + _TIMEOUT_S
        attempt = 1
        while True:
            error: Exception
            try:
                status, content = self._exchange(call, query, body, content_type)
                if status < 300:
                    return content
                error = refused(call, status, _status_of(content))
                is_temporary = may_retry(call, status)
            except OSError as cause:
                error = unreachable(call.server, cause)
                error.__cause__ = cause
                is_temporary = call.verb in READS
            if not is_temporary or attempt == _ATTEMPTS or time.monotonic() > deadline:
                raise error
            attempt += 1
            self._sleep(backoff_s(attempt, _BACKOFF_S, _TIMEOUT_S))

    def _exchange(
        self,
        call: ApiCall,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
    ) -> tuple[int, bytes]:
        """Send a request once; an `OSError` is one of the network."""
        with _network_errors():
            answer = self._open(call, query, body, content_type, _TIMEOUT_S)
            return answer.status, answer.read()

    def _lines(self, call: ApiCall, query: Mapping[str, str], silence_s: float) -> Iterator[bytes]:
        """Yield lines of an answer as they arrive, without their ends.

        Args:
            silence_s: Longest time without data.
        """
        try:
            with _network_errors():
                timeout = (_TIMEOUT_S, silence_s)
                answer = self._open(call, query, None, "application/json", timeout)
                if answer.status >= 300:
                    raise refused(call, answer.status, _status_of(answer.read()))
                try:
                    yield from _split(answer.response.stream(amt=None, decode_content=False))
                finally:
                    # Data that has not been read makes the connection useless for others.
                    answer.response.close()
        except OSError as cause:
            raise unreachable(call.server, cause) from cause

    def _open(
        self,
        call: ApiCall,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
        timeout_s: float | tuple[float, float],
    ) -> Any:
        request = self._client.param_serialize(
            _METHODS[call.verb],
            _path(call),
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json, */*", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        return self._client.call_api(*request, _request_timeout=timeout_s)


@contextlib.contextmanager
def _network_errors() -> Iterator[None]:
    """Raise errors of the network as `ConnectionError`."""
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        yield
    except HTTPError as error:
        raise ConnectionError(str(error)) from error
    except ApiException as error:  # the server's certificate
        raise ConnectionError(error.reason) from error


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split data into lines."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _selectors(labels: Mapping[str, str], fields: Mapping[str, str] | None) -> dict[str, str]:
    """Return the query parameters that select objects."""
    selectors = {"labelSelector": labels, "fieldSelector": fields or {}}
    return {
        name: ",".join(f"{key}={value}" for key, value in sorted(pairs.items()))
        for name, pairs in selectors.items()
        if pairs
    }


def _path(call: ApiCall) -> str:
    if call.kind == _VERSION:
        return "/version"
    version, plural = _RESOURCES[call.kind]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if call.kind in _OUTSIDE_NAMESPACES:
        return f"{root}/{plural}"
    path = f"{root}/namespaces/{quote(call.namespace, safe='')}/{plural}"
    if call.name is None or call.verb == "create":
        return path
    return "/".join((path, quote(call.name, safe=""), *call.resource.split("/")[1:]))


def _status_of(content: bytes) -> Mapping[str, Any]:
    """Return the ``Status`` object of an answer; another server may send something else."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    text = content[:_SHOWN_BYTES].decode(errors="replace")
    return body if isinstance(body, dict) else {"message": text}

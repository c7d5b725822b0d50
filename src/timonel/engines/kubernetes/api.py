"""Client of the API server: objects as JSON, over the official client's transport."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from timonel._version import __version__
from timonel.engines.kubernetes.api_errors import READS, Call, may_retry, refused, unreachable
from timonel.engines.kubernetes.rights import Right
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import InputError, MissingExtraError, NotFoundError, did_you_mean
from timonel.processes.backoff import backoff_s

_RESOURCES = {
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("v1", "events"),
    "Job": ("batch/v1", "jobs"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "Pod": ("v1", "pods"),
    "Role": ("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": ("v1", "secrets"),
    "SelfSubjectAccessReview": ("authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
}
_OUTSIDE_NAMESPACES = {"SelfSubjectAccessReview"}
_VERSION = "Version"
_METHODS = {"get": "GET", "list": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}
_TIMEOUT_S = 30.0
_ATTEMPTS = 4
_BACKOFF_S = 0.5
_LOG_LINES = 200
_SHOWN_BYTES = 200
_KUBECONFIG = "~/.kube/config"
_IN_POD = "KUBERNETES_SERVICE_HOST"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Object = dict[str, Any]
Objects = list[Object]


class Api:
    """Objects of one namespace. Thread-safe.

    All methods wait up to 30 s for an answer. Reads are repeated a few times when the server does
    not answer or has an error; writes only when it asks for that. They raise:

    - UnavailableError: The server does not answer, or asks to try later.
    - EngineError: It refuses: credentials, rights, quota, or admission.
    - NotFoundError: The object or the namespace does not exist.
    - AlreadyExistsError, ConflictError: Another object or version is in the way.
    - SpecError: The server calls the object invalid.

    Args:
        namespace: Namespace of the objects.
        client: The official client's ``ApiClient``.
        sleep: Waits between attempts.
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

        Raises:
            MissingExtraError: The official client is not installed.
            NotFoundError: No kubeconfig, or no such context in it.
            InputError: The kubeconfig cannot be used.
        """
        try:
            # Takes most of a second.
            from kubernetes import client, config  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("running on Kubernetes", "kubernetes") from error
        paths = environ.get("KUBECONFIG") or _KUBECONFIG
        configuration = client.Configuration()
        try:
            files = config.kube_config.KubeConfigMerger(paths).config_files
            if not files and settings.context is None and environ.get(_IN_POD):
                namespace = _POD_NAMESPACE.read_text().strip()
                config.load_incluster_config(configuration)
            else:
                context, namespace = _context(list(files.values()), settings.context, paths)
                config.load_kube_config(paths, context, configuration)
        except InputError:
            raise
        except Exception as error:  # of the client, its plugins and the YAML parser
            raise InputError(
                f"cannot use the kubeconfig {paths}: {' '.join(str(error).split())}",
                hint="check it with 'kubectl config view'",
            ) from error
        # The client would repeat requests at once, and writes too.
        configuration.retries = False
        return cls(settings.namespace or namespace, client.ApiClient(configuration))

    @property
    def server(self) -> str:
        """Address of the server."""
        return str(self._client.configuration.host)

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

    def list(self, kind: str, labels: Mapping[str, str]) -> Objects:
        """Return all objects with these labels."""
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        answer = self._json(self._call("list", kind, None), query={"labelSelector": selector})
        found: Objects = answer["items"]
        return found

    def patch(
        self, kind: str, name: str, body: Mapping[str, Any], *, is_status: bool = False
    ) -> Object:
        """Change fields of an object, as a JSON merge patch, and return it.

        With a ``metadata.resourceVersion`` in the patch, other changes since are a ConflictError.

        Args:
            kind: Kind of the object.
            name: Its name.
            body: The fields.
            is_status: Whether they are those of its status, which is a resource of its own.
        """
        return self._json(
            self._call("patch", kind, name, "status" if is_status else ""),
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
    ) -> None:
        """Delete an object, and those that it owns.

        Args:
            kind: Kind of the object.
            name: Its name.
            grace_s: Seconds that a pod has to end; None: as the pod says; 0: without waiting for
                its node.
            propagation: What happens to objects that it owns.
            uid: Delete only the object with this UID; another one of that name is a ConflictError.
        """
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            # Without it, what a Job owns is left behind.
            "propagationPolicy": propagation,
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        self._json(self._call("delete", kind, name), body=options)

    def version(self) -> str:
        """Return the version of the server, such as v1.37.0."""
        call = Call("get", _VERSION, "version", None, self.namespace, self.server)
        return str(self._json(call)["gitVersion"])

    def allows(self, right: Right) -> bool:
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

    def pod_log(self, name: str) -> str:
        """Return the last lines of a pod's output."""
        call = self._call("get", "Pod", name, subresource="log")
        return self._send(call, {"tailLines": str(_LOG_LINES)}).decode(errors="replace")

    def _call(self, verb: str, kind: str, name: str | None, subresource: str = "") -> Call:
        resource = _RESOURCES[kind][1] + (f"/{subresource}" if subresource else "")
        return Call(verb, kind, resource, name, self.namespace, self.server)

    def _json(self, call: Call, **options: Any) -> Object:
        answer: Object = json.loads(self._send(call, **options))
        return answer

    def _send(
        self,
        call: Call,
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
        call: Call,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
    ) -> tuple[int, bytes]:
        """Send a request once; an `OSError` is one of the network."""
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            request = self._client.param_serialize(
                _METHODS[call.verb],
                _path(call),
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json, */*", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = self._client.call_api(*request, _request_timeout=_TIMEOUT_S)
            return answer.status, answer.read()
        except HTTPError as error:
            raise ConnectionError(str(error)) from error
        except ApiException as error:  # the server's certificate
            raise ConnectionError(error.reason) from error


def _context(files: Sequence[Mapping[str, Any]], name: str | None, paths: str) -> tuple[str, str]:
    """Return the context to use and its namespace; as in kubectl, the first file wins."""
    if not files:
        raise NotFoundError(
            f"no kubeconfig at {paths}",
            hint="get one from your cluster's provider, and set KUBECONFIG to its path",
        )
    names = [file["current-context"] for file in files if file.get("current-context")]
    if name is None and not names:
        raise NotFoundError(
            f"the kubeconfig {paths} has no current context",
            hint="choose one with 'kubectl config use-context' or TIMONEL_KUBERNETES_CONTEXT",
        )
    chosen = name or names[0]
    contexts = [each for file in files for each in file.get("contexts") or ()]
    for each in contexts:
        if each["name"] == chosen:
            return chosen, each["context"].get("namespace") or "default"
    known = [each["name"] for each in contexts]
    raise NotFoundError(
        f"the kubeconfig {paths} has no context '{chosen}'",
        hint=did_you_mean(chosen, known) or f"use one of {', '.join(known)}",
    )


def _path(call: Call) -> str:
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

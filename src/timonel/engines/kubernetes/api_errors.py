"""Translate answers of the API server to timonel errors. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timonel.errors import (
    AlreadyExistsError,
    EngineError,
    NotFoundError,
    SpecError,
    TimonelError,
)

READS = frozenset({"get", "list"})
_INVALID = frozenset({400, 422})
_GONE = 410
_BUSY = 429


class ClusterUnavailableError(EngineError):
    """The API server does not answer, or asks to try later."""


class ConflictError(EngineError):
    """An object has changed since it was read, and a write would undo that change."""


class GoneError(EngineError):
    """A watch cannot go on, because the server has forgotten the version that it began at."""


@dataclass(frozen=True)
class ApiCall:
    """A request to the API server.

    Attributes:
        verb: What is done, as in roles: ``create``, ``get``, ``list``, ``watch``, ``update``,
            ``patch``, ``delete``.
        kind: Kind of the object.
        resource: Name of the kind in roles, such as ``jobs`` or ``pods/log``.
        name: Name of the object; None: all of them.
        namespace: Namespace.
        server: Address of the server.
    """

    verb: str
    kind: str
    resource: str
    name: str | None
    namespace: str
    server: str

    @property
    def target(self) -> str:
        """What the request is about, for messages."""
        what = f"{self.kind} '{self.name}'" if self.name else self.resource
        return f"{what} in namespace '{self.namespace}'"


def may_retry(call: ApiCall, status: int) -> bool:
    """Decide whether to send a request again, after an answer that is an error."""
    return status == _BUSY or (call.verb in READS and status >= 500)


def unreachable(server: str, error: Exception) -> ClusterUnavailableError:
    """Return the error for a server that does not answer."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return ClusterUnavailableError(
        f"the cluster at {server} does not answer: {reason}",
        hint="check the network, the cluster and the context, as with 'kubectl get jobs'",
    )


def refused(call: ApiCall, status: int, body: Mapping[str, Any]) -> TimonelError:
    """Return the error for an answer.

    Args:
        body: Its content, a ``Status`` object.
    """
    message = " ".join(str(body.get("message") or "").split()) or f"HTTP status {status}"
    explain = {401: _unauthorized, 403: _forbidden, 404: _not_found, 409: _conflict}.get(status)
    if explain:
        return explain(call, body, message)
    if status == _GONE:
        return GoneError(f"the cluster cannot {call.verb} {call.target}: {message}")
    if status in _INVALID:
        return SpecError(f"the cluster cannot {call.verb} {call.target}: {message}")
    if status == _BUSY or status >= 500:
        return ClusterUnavailableError(
            f"the cluster at {call.server} cannot answer now: {message}",
            hint="repeat the command later",
        )
    return EngineError(f"the cluster refused to {call.verb} {call.target}: {message}")


def _unauthorized(call: ApiCall, _: Mapping[str, Any], message: str) -> TimonelError:
    return EngineError(
        f"the cluster at {call.server} does not accept the credentials, which may be missing or "
        f"expired: {message}",
        hint="log in to the cluster again, and check with 'kubectl get jobs'",
    )


def _forbidden(call: ApiCall, _: Mapping[str, Any], message: str) -> TimonelError:
    if "exceeded quota" in message or "failed quota" in message:
        reason = message[message.index("quota") :].partition(": ")[2]
        return EngineError(
            f"a quota does not allow {call.target}: {reason}",
            hint="delete what you no longer need, request less, or ask for a higher quota",
        )
    if "is attempting to grant" in message:
        return EngineError(
            f"not allowed to {call.verb} {call.target}: you can only give a job's coordinator "
            "rights that you have yourself",
            hint=f"ask the cluster's administrator: {message}",
        )
    if f"cannot {call.verb} resource" not in message:
        # An admission controller or webhook.
        return EngineError(f"the cluster refused to {call.verb} {call.target}: {message}")
    resource, *subresource = call.resource.split("/")
    option = f" --subresource={subresource[0]}" if subresource else ""
    check = f"kubectl auth can-i {call.verb} {resource}{option} -n {call.namespace}"
    return EngineError(
        f"you are not allowed to {call.verb} {call.resource} in namespace '{call.namespace}'",
        hint=f"ask the cluster's administrator, and check with '{check}'",
    )


def _not_found(call: ApiCall, body: Mapping[str, Any], message: str) -> TimonelError:
    details = body.get("details") or {}
    if details.get("kind") == "namespaces":
        return NotFoundError(
            f"the cluster has no namespace '{call.namespace}'",
            hint=f"create it with 'kubectl create namespace {call.namespace}', or choose another "
            "one with TIMONEL_KUBERNETES_NAMESPACE",
        )
    if call.name is None or call.verb == "create" or body.get("kind") != "Status":
        return EngineError(
            f"the cluster at {call.server} cannot {call.verb} {call.resource}: {message}",
            hint="check that it is a Kubernetes cluster with this kind of object, with "
            "'kubectl api-resources'",
        )
    return NotFoundError(f"no {call.target}")


def _conflict(call: ApiCall, body: Mapping[str, Any], message: str) -> TimonelError:
    if body.get("reason") == "AlreadyExists":
        return AlreadyExistsError(f"{call.target} already exists", hint="choose another name")
    return ConflictError(f"the cluster cannot {call.verb} {call.target}: {message}")

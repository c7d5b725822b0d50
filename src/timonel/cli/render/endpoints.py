"""Endpoints as tables and JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from timonel.cli.render.output import clock, iso
from timonel.cli.render.tables import pairs, status, table
from timonel.cli.render.view import STATUS, WORDS, Field, ValueKind, View

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from timonel.endpoints import Endpoint
    from timonel.endpoints.folder import EndpointStatus, Revision

_SHOWN_REVISIONS = 10
_NO_PAGE = "none while the control plane is away"


def printer_of_messages(remarks: Console) -> Callable[[EndpointStatus], None]:
    """Return a callback that prints the message of each new status."""

    def show(status: EndpointStatus) -> None:
        if status.message:
            remarks.print(status.message, style="dim", soft_wrap=True)

    return show


def endpoint_page(endpoint: Endpoint) -> RenderableType:
    """Return a page about an endpoint: facts, versions, replicas, revisions."""
    now = endpoint.status
    percent = endpoint.routed.spec.traffic.percent if endpoint.routed else {}
    versions: list[tuple[Any, ...]] = [
        (
            version,
            f"{percent.get(version, 0)} %",
            f"{each.ready}/{each.desired}",
            each.concurrency,
            each.rate,
            each.held,
            each.message or each.reason,
        )
        for version, each in sorted(now.versions.items())
    ]
    replicas: list[tuple[Any, ...]] = [
        (replica.name, status(replica.state), replica.restarts, replica.addresses.get("http"),
         replica.message)
        for service in endpoint.services.values()
        for replica in service.replicas
    ]  # fmt: skip
    parts: list[RenderableType] = [pairs(ENDPOINT.facts(endpoint))]
    if versions:
        heads = ("VERSION", "TRAFFIC", "READY", "CONCURRENCY", "REQUESTS/S", "WAITING", "REASON")
        parts += [Text(), table(heads, versions, wide=6)]
    if replicas:
        columns = ("REPLICA", "STATE", "RESTARTS", "REST", "REASON")
        parts += [Text(), table(columns, replicas, wide=4)]
    revisions = [
        (each.number, clock(each.created_at), each.cause)
        for each in reversed(endpoint.revisions[-_SHOWN_REVISIONS:])
    ]
    parts += [Text(), table(("REVISION", "MADE", "BY"), revisions, wide=2)]
    return Group(*parts)


def revision_json(revision: Revision) -> dict[str, Any]:
    """Return a revision as JSON."""
    return {
        "revision": revision.number,
        "created_at": iso(revision.created_at),
        "cause": revision.cause,
        "spec": revision.spec.model_dump(mode="json"),
    }


def _shares(endpoint: Endpoint) -> str:
    routed = endpoint.routed or endpoint.revision
    percent = routed.spec.traffic.percent
    return ", ".join(f"{version}: {share} %" for version, share in sorted(percent.items()))


def _replicas(endpoint: Endpoint) -> str:
    versions = endpoint.status.versions.values()
    return f"{sum(each.ready for each in versions)}/{sum(each.desired for each in versions)}"


def _bounds(endpoint: Endpoint) -> str:
    scaling = endpoint.spec.scaling
    return f"{scaling.min_replicas} to {scaling.max_replicas or 'any'}, {scaling.goal}"


def _host(endpoint: Endpoint) -> str | None:
    if (outside := endpoint.outside) is None:
        return None
    return outside.host + (f" ({outside.message})" if outside.message else "")


def _page(endpoint: Endpoint) -> str | None:
    return (endpoint.page_url or _NO_PAGE) if endpoint.is_local else None


def _delayed(endpoint: Endpoint) -> str | None:
    routed = endpoint.status.routed
    is_late = routed and routed != endpoint.revision.number
    return f"that of revision {routed}" if is_late else None


def _replica_documents(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"version": version, **replica.model_dump(mode="json")}
        for version, service in endpoint.services.items()
        for replica in service.replicas
    ]


_BY_VERSION = ValueKind(
    json=lambda versions: {str(n): each.model_dump(mode="json") for n, each in versions.items()}
)
ENDPOINT = View(
    Field("name", column="ENDPOINT", line="endpoint"),
    Field("state", STATUS, column="STATE", line="state"),
    Field("url", column="ADDRESS"),
    Field(column="TRAFFIC", shown=_shares),
    Field(column="REPLICAS", shown=_replicas),
    Field("model", get=lambda found: found.spec.model, line="model"),
    Field("model_name", get=lambda found: found.spec.model_name),
    Field(line="REST", get=lambda found: f"{found.url}/v1/models/{found.spec.model_name}"),
    Field(line="gRPC", get=lambda found: found.url.partition("://")[2]),
    Field("page_url", line="page", shown=_page),
    Field("revision", get=lambda found: found.revision.number, column="REVISION"),
    Field(line="revision", shown=lambda found: f"{found.revision.number} ({found.revision.cause})"),
    Field("routed_revision", get=lambda found: found.status.routed),
    Field(line="replicas", shown=_bounds),
    Field("host", get=lambda found: found.outside and found.outside.host, line="host", shown=_host),
    Field(
        "message",
        get=lambda found: found.status.message,
        column="REASON",
        line="reason",
        shown=lambda found: found.status.message or "",
    ),
    Field(
        "traffic",
        get=lambda found: {str(n): share for n, share in found.spec.traffic.percent.items()},
        line="traffic",
        shown=_delayed,
    ),
    Field(
        "follow",
        get=lambda found: found.spec.follow,
        line="follows",
        shown=lambda e: e.spec.follow and f"{e.spec.model_name}@{e.spec.follow}",
    ),
    Field(line="rules", kind=WORDS, get=lambda found: found.spec.traffic.rules),
    Field("versions", _BY_VERSION, lambda found: found.status.versions),
    Field("spec", is_detail=True),
    Field("replicas", get=_replica_documents, is_detail=True),
    Field(
        "revisions",
        get=lambda found: [revision_json(each) for each in found.revisions],
        is_detail=True,
    ),
    wide="REASON",
    unreadable="unreadable",
)

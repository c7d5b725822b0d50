"""Endpoints as tables and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from timonel.cli.render.output import clock, iso
from timonel.cli.render.tables import pairs, status, table
from timonel.errors import TimonelError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from timonel.endpoints import Endpoint
    from timonel.endpoints.folder import EndpointStatus, Revision

_SHOWN_REVISIONS = 10
_UNREADABLE = "unreadable"
_NO_PAGE = "none while the control plane is away"


def printer_of_messages(remarks: Console) -> Callable[[EndpointStatus], None]:
    """Return a callback that prints the message of each new status."""

    def show(status: EndpointStatus) -> None:
        if status.message:
            remarks.print(status.message, style="dim", soft_wrap=True, markup=False)

    return show


def endpoint_list(endpoints: Iterable[Endpoint]) -> Table:
    """Return a table of endpoints."""
    heads = ("ENDPOINT", "STATE", "ADDRESS", "TRAFFIC", "REPLICAS", "REVISION", "REASON")
    return table(heads, [_row(each) for each in endpoints], wide=6)


def _row(endpoint: Endpoint) -> tuple[Any, ...]:
    try:
        return (
            endpoint.name,
            status(endpoint.state),
            endpoint.url,
            _shares(endpoint),
            _replicas(endpoint),
            endpoint.revision.number,
            endpoint.status.message or "",
        )
    except TimonelError as error:
        return (endpoint.name, status(_UNREADABLE), None, None, None, None, str(error))


def endpoint_entry(endpoint: Endpoint) -> dict[str, Any]:
    """Return an endpoint as JSON; the error of one whose documents are unreadable."""
    try:
        return endpoint_json(endpoint)
    except TimonelError as error:
        return {"name": endpoint.name, "state": _UNREADABLE, "message": str(error)}


def endpoint_page(endpoint: Endpoint) -> RenderableType:
    """Return a page about an endpoint: facts, versions, replicas, revisions."""
    spec, now = endpoint.spec, endpoint.status
    scaling = spec.scaling
    most = scaling.max_replicas or "any"
    facts = {
        "endpoint": endpoint.name,
        "state": status(endpoint.state),
        "model": spec.model,
        "REST": f"{endpoint.url}/v1/models/{spec.model_name}",
        "gRPC": endpoint.url.partition("://")[2],
        **({"page": endpoint.page_url or _NO_PAGE} if endpoint.is_local else {}),
        "revision": f"{endpoint.revision.number} ({endpoint.revision.cause})",
        "replicas": f"{scaling.min_replicas} to {most}, {scaling.goal}",
    }
    if (outside := endpoint.outside) is not None:
        facts["host"] = outside.host + (f" ({outside.message})" if outside.message else "")
    if now.message:
        facts["reason"] = now.message
    if now.routed and now.routed != endpoint.revision.number:
        facts["traffic"] = f"that of revision {now.routed}"
    if spec.follow is not None:
        facts["follows"] = f"{spec.model_name}@{spec.follow}"
    if spec.traffic.rules:
        facts["rules"] = ", ".join(spec.traffic.rules)
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
    parts: list[RenderableType] = [pairs(facts)]
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


def endpoint_json(endpoint: Endpoint, *, whole: bool = False) -> dict[str, Any]:
    """Return an endpoint as JSON; with its revisions and replicas if ``whole``."""
    spec, now = endpoint.spec, endpoint.status
    found: dict[str, Any] = {
        "name": endpoint.name,
        "state": endpoint.state,
        "url": endpoint.url,
        "host": None if (outside := endpoint.outside) is None else outside.host,
        "page_url": endpoint.page_url,
        "model": spec.model,
        "model_name": spec.model_name,
        "revision": endpoint.revision.number,
        "routed_revision": now.routed,
        "follow": spec.follow,
        "traffic": {str(version): share for version, share in spec.traffic.percent.items()},
        "message": now.message,
        "versions": {
            str(version): each.model_dump(mode="json") for version, each in now.versions.items()
        },
    }
    if whole:
        found["spec"] = spec.model_dump(mode="json")
        found["replicas"] = [
            {"version": version, **replica.model_dump(mode="json")}
            for version, service in endpoint.services.items()
            for replica in service.replicas
        ]
        found["revisions"] = [revision_json(each) for each in endpoint.revisions]
    return found


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

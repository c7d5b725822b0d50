"""Decide what the services and the traffic of an endpoint should be. Pure.

Each version of an endpoint is a service. A new revision gets traffic once all its versions have had
a ready replica, so a version that cannot be loaded interrupts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from timonel.endpoints.folder import EndpointStatus, Revision
from timonel.endpoints.gateway.parts import PROTOCOLS, Protocol, Route
from timonel.endpoints.spec import EndpointSpec, Traffic, service_name
from timonel.engines import HealthCheck, ServiceSpec, ServiceStatus

DRAIN_S = 30.0
"""Time that a stopped replica has for the requests in flight."""


@dataclass(frozen=True)
class Plan:
    """What should be.

    Attributes:
        services: Service by version.
        routed: Number of the revision whose traffic applies; 0 for none.
        proved: Versions that have had a ready replica.
        message: Why the latest revision does not apply yet.
    """

    services: Mapping[int, ServiceSpec]
    routed: int
    proved: tuple[int, ...]
    message: str | None


def plan(
    revisions: Sequence[Revision],
    status: EndpointStatus,
    services: Mapping[str, ServiceStatus],
    workspace: str,
    env: Mapping[str, str] | None = None,
) -> Plan:
    """Return what the services and the traffic of an endpoint should be.

    Args:
        revisions: All revisions, oldest first.
        status: The last published status.
        services: Services by name.
        workspace: URI of the workspace.
        env: Environment variables of replicas.
    """
    latest = revisions[-1]
    name = latest.spec.name
    routed = next((each for each in revisions if each.number == status.routed), None)
    needed = dict.fromkeys(latest.spec.traffic.versions, latest)
    if routed is not None:
        # Versions that still get requests; with the latest settings where both have them.
        needed = dict.fromkeys(routed.spec.traffic.versions, routed) | needed
    proved = tuple(
        version
        for version in sorted(needed)
        if version in status.proved or has_ready(services.get(service_name(name, version)))
    )
    wanted = latest.spec.traffic.versions
    missing = [version for version in wanted if version not in proved]
    if routed is None or not missing:
        # Without earlier traffic there is nothing to protect; requests wait for a replica.
        routed, message = latest, None
    else:
        message = "; ".join(_progress(name, version, services) for version in missing)
    if not missing and routed is latest:
        needed = dict.fromkeys(wanted, latest)
    specs = {
        version: _service(revisions, revision, version, workspace, env or {})
        for version, revision in sorted(needed.items())
    }
    return Plan(specs, routed.number, tuple(v for v in proved if v in needed), message)


def _is_version(service: str, prefix: str) -> bool:
    return service.startswith(prefix) and service.removeprefix(prefix).isdecimal()


def has_ready(service: ServiceStatus | None) -> bool:
    """Return whether a service has a replica that accepts requests."""
    return service is not None and bool(service.ready)


def _progress(name: str, version: int, services: Mapping[str, ServiceStatus]) -> str:
    service = services.get(service_name(name, version))
    failures = (
        [replica.message for replica in service.replicas if replica.message] if service else []
    )
    if failures:
        return f"version {version} does not start: {failures[-1]}"
    return f"version {version} starts"


def initial_replicas(
    spec: EndpointSpec, version: int, services: Mapping[str, ServiceStatus]
) -> int:
    """Return the first size of a version's service: its share of what runs now, at least one."""
    names = [service_name(spec.name, each) for each in spec.traffic.versions]
    now = sum(len(services[each].ready) for each in names if each in services)
    prefix = f"{spec.name}-v"
    now = max(now, sum(len(s.ready) for n, s in services.items() if n.startswith(prefix)))
    share = spec.traffic.percent.get(version, 0) / 100
    wanted = max(spec.scaling.initial_replicas, math.ceil(now * share))
    return max(1, spec.scaling.clamp(wanted))


def _service(
    revisions: Sequence[Revision],
    revision: Revision,
    version: int,
    workspace: str,
    env: Mapping[str, str],
) -> ServiceSpec:
    """Return the service of a version. Its number is that of the first revision that had it so.

    So a rollback keeps the replicas that still run.
    """
    spec = _template(revision.spec, version, workspace, env)
    same = (
        each.number
        for each in revisions
        if version in each.spec.traffic.versions
        and _template(each.spec, version, workspace, env) == spec
    )
    return spec.model_copy(update={"revision": min(same, default=revision.number)})


def _template(
    spec: EndpointSpec, version: int, workspace: str, env: Mapping[str, str]
) -> ServiceSpec:
    listen = ("--host", "$(HOST)", "--rest-port", "$(PORT_HTTP)", "--grpc-port", "$(PORT_GRPC)")
    return ServiceSpec(
        name=service_name(spec.name, version),
        module="timonel",
        args=(
            "--workspace", workspace,
            "serve", spec.model, "--version", str(version),
            *listen,
            "--drain-s", f"{DRAIN_S:g}",
            *(text.replace("$", "$$") for text in spec.server_args),
        ),
        env=env,
        ports=PROTOCOLS,
        check=HealthCheck(port="http", ready_path="/readyz", alive_path="/livez"),
        # Envoy has noticed by then.
        stop_delay_s=1.0,
        stop_grace_s=DRAIN_S + 5,
        workspace=workspace,
        resources=spec.resources,
    )  # fmt: skip


def route(latest: EndpointSpec, traffic: Traffic, services: Mapping[str, ServiceStatus]) -> Route:
    """Return an endpoint as the gateway needs it."""
    # Those of services that are about to end, too: Envoy may still send requests there.
    prefix = f"{latest.name}-v"
    running = {int(n.removeprefix(prefix)) for n in services if _is_version(n, prefix)}
    versions = sorted({*latest.traffic.versions, *traffic.versions, *running})
    ready: dict[int, dict[Protocol, tuple[str, ...]]] = {}
    for version in versions:
        service = services.get(service_name(latest.name, version))
        replicas = service.ready if service is not None else ()
        ready[version] = {
            protocol: tuple(replica.addresses[protocol] for replica in replicas)
            for protocol in PROTOCOLS
        }
    return Route(latest, traffic, ready)

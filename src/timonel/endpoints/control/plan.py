"""Decide the desired services and traffic of an endpoint. Pure functions.

Each version of an endpoint is a service. A new revision gets traffic once all its versions have had
a ready replica, so a version that cannot be loaded interrupts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from timonel.endpoints.autoscaling import ScalingPolicy
from timonel.endpoints.folder import Revision
from timonel.endpoints.gateway.parts import PROTOCOLS, EndpointRoute, Protocol
from timonel.endpoints.spec import EndpointSpec, service_name, version_of
from timonel.engines import AutoscalerSpec, HealthCheck, ServiceSpec, ServiceStatus
from timonel.serving.status import without_folders


@dataclass(frozen=True)
class Plan:
    """Desired services and traffic.

    Attributes:
        services: Service by version.
        routed: Number of the revision whose traffic applies; 0 for none.
        proved: Versions that have had a ready replica, with the digests of their services.
        message: Why the latest revision does not apply yet.
    """

    services: Mapping[int, ServiceSpec]
    routed: int
    proved: Mapping[int, str]
    message: str | None


def plan(
    latest: Revision,
    routed: Revision | None,
    proved: Mapping[int, str],
    services: Mapping[int, ServiceStatus],
    spec_of: Callable[[Revision, int], ServiceSpec],
) -> Plan:
    """Return the desired services and traffic of an endpoint.

    Args:
        routed: The revision whose traffic applies; None before the first.
        proved: Versions that have had a ready replica, with the digests of their services.
        services: Services by version.
        spec_of: Returns the service of a version in a revision; see `service_spec`.
    """
    needed = dict.fromkeys(latest.spec.traffic.versions, latest)
    if routed is not None:
        # Versions that still get requests; with the latest settings where both have them.
        needed = dict.fromkeys(routed.spec.traffic.versions, routed) | needed
    specs = {version: spec_of(revision, version) for version, revision in sorted(needed.items())}
    found = {
        version: spec.digest
        for version, spec in specs.items()
        if proved.get(version) == spec.digest or _has_ready(services.get(version), spec)
    }
    targets = latest.spec.traffic.versions
    missing = [version for version in targets if version not in found]
    if routed is None or not missing:
        # Without earlier traffic there is nothing to protect; requests wait for a replica.
        routed, message = latest, None
    else:
        message = "; ".join(_progress(version, services.get(version)) for version in missing)
    if not missing and routed.number == latest.number:
        specs = {version: specs[version] for version in targets}
    kept = {version: digest for version, digest in found.items() if version in specs}
    return Plan(specs, routed.number, kept, message)


def services_by_version(
    endpoint: str, services: Iterable[ServiceStatus]
) -> dict[int, ServiceStatus]:
    """Return the services of an endpoint by version, ascending."""
    found = {version_of(endpoint, each.name): each for each in services}
    return {version: found[version] for version in sorted(v for v in found if v is not None)}


def _has_ready(service: ServiceStatus | None, spec: ServiceSpec) -> bool:
    """Return whether a replica with this specification accepts requests."""
    if service is None or service.digest != spec.digest:
        return False
    return any(replica.revision == service.revision for replica in service.ready)


def _progress(version: int, service: ServiceStatus | None) -> str:
    replicas = () if service is None else service.replicas
    failures = [replica.message for replica in replicas if replica.message]
    if failures:
        return f"version {version} does not start: {failures[-1]}"
    return f"version {version} starts"


def start_failures(services: Mapping[str, ServiceStatus]) -> dict[str, str]:
    """Return what clients of services whose replicas cannot start are told, by service."""
    return {
        name: f"its replicas do not start: {without_folders(reason)}"
        for name, service in services.items()
        if (reason := service.start_failure) is not None
    }


def initial_replicas(
    spec: EndpointSpec, version: int, services: Mapping[int, ServiceStatus]
) -> int:
    """Return the first size of a version's service: its share of what runs now, at least one.

    Args:
        services: Services of the endpoint by version.
    """
    now = sum(len(each.ready) for each in services.values())
    share = spec.traffic.percent.get(version, 0) / 100
    replicas = max(spec.scaling.initial_replicas, math.ceil(now * share))
    return max(1, spec.scaling.clamp(replicas))


def service_spec(
    spec: EndpointSpec, version: int, workspace: str, sockets: str | None = None
) -> ServiceSpec:
    """Return the service of a version.

    Args:
        sockets: Private folder of the replicas' sockets; None: they listen on ports.
    """
    listen = ("--host", "$(HOST)", "--rest-port", "$(PORT_HTTP)", "--grpc-port", "$(PORT_GRPC)")
    return ServiceSpec(
        name=service_name(spec.name, version),
        module="timonel",
        args=(
            "--workspace", workspace,
            "serve", spec.model, "--version", str(version),
            "--foreground", "--no-page", *listen,
            # A request finishes within its time limit, on the version that began it.
            "--drain-s", f"{spec.limits.timeout_s:g}",
            *(text.replace("$", "$$") for text in spec.server_args),
        ),
        ports=PROTOCOLS,
        sockets=sockets,
        check=HealthCheck(port="http", ready_path="/readyz", alive_path="/livez"),
        # Envoy has noticed by then.
        stop_delay_s=1.0,
        stop_grace_s=spec.limits.timeout_s + 5,
        workspace=workspace,
        resources=spec.resources,
        image=spec.image,
    )  # fmt: skip


def autoscaler_spec(policy: ScalingPolicy) -> AutoscalerSpec | None:
    """Return the rules by which the cluster itself scales; None: the control plane does."""
    if policy.algorithm != "cluster":
        return None
    return AutoscalerSpec(
        least=policy.min_replicas,
        most=policy.max_replicas,
        metrics=policy.cluster_metrics,
        behavior=policy.behavior.model_dump(by_alias=True),
    )


def ready_addresses(
    route: EndpointRoute, services: Mapping[int, ServiceStatus]
) -> dict[int, dict[Protocol, tuple[str, ...]]]:
    """Return the addresses of ready replicas by version and protocol.

    Args:
        route: An endpoint as the gateway needs it.
        services: Services by version.
    """
    # Those of services that are about to end, too: Envoy may still send requests there.
    known = (route.spec.traffic.versions, route.traffic.versions, services)
    ready: dict[int, dict[Protocol, tuple[str, ...]]] = {}
    for version in sorted({version for versions in known for version in versions}):
        service = services.get(version)
        replicas = service.ready if service is not None else ()
        ready[version] = {
            protocol: tuple(replica.addresses[protocol] for replica in replicas)
            for protocol in PROTOCOLS
        }
    return ready

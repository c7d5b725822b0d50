"""The control plane as a service of the engine, which restarts it."""

from __future__ import annotations

import contextlib
import time

from timonel.endpoints.gateway import sidecar
from timonel.engines import (
    HealthCheck,
    Resources,
    ServiceEngine,
    ServiceSpec,
    ServiceState,
    ServiceStatus,
    Sidecar,
)
from timonel.errors import EngineError, NotFoundError
from timonel.storage import Workspace

SERVICE = "endpoints-controller"
REPLICAS = 2
"""Replicas on an engine of several machines; one of them makes the decisions."""
_TIMEOUT_S = 60.0
_POLL_S = 0.1


def apply_current(
    engine: ServiceEngine, spec: ServiceSpec, before: ServiceStatus | None = None
) -> None:
    """Apply a specification, as another revision if it differs from the one applied last.

    It may differ because this is another release.

    Args:
        spec: The specification; its revision does not matter.
        before: Status of the service; None to ask the engine.
    """
    revision = 1
    with contextlib.suppress(NotFoundError):
        found = before or engine.service(spec.name)
        revision = found.revision + (found.digest != spec.digest)
    engine.apply(spec.model_copy(update={"revision": revision}))


def control_service(workspace: Workspace, engine: ServiceEngine) -> ServiceSpec:
    """Return the service of the control plane; with a gateway beside it on other machines."""
    check = HealthCheck(ready_path="/readyz", alive_path="/livez", timeout_s=5)
    common = ServiceSpec(
        name=SERVICE,
        module="timonel.endpoints.control",
        args=(workspace.uri, "$(HOST)", "$(PORT)"),
        check=check,
        replicas=1,
        hang_timeout_s=30,
        stop_grace_s=10,
        restart_delay_s=1,
        workspace=workspace.uri,
    )
    if engine.is_one_machine:
        return common
    port = sidecar.READY_PORT
    envoy = Sidecar(
        name="envoy",
        command=(
            "python3",
            "-m",
            "timonel.endpoints.gateway.sidecar",
            "$(SHARED)",
            "$(HOST)",
            str(port),
        ),
        ports={"ready": port},
        ready_path="/",
        resources=Resources(cpus=0.1, memory_bytes=1 << 30),
    )
    return common.model_copy(
        update={
            "args": (*common.args, "$(SHARED)"),
            # Changed settings make another revision.
            "env": engine.settings,
            "image": engine.default_image,
            "sidecar": envoy,
            "uses_engine": True,
            "replicas": REPLICAS,
            "resources": Resources(cpus=0.1, memory_bytes=1 << 30),
            # Clients have noticed by then; the replica waits for requests in flight.
            "stop_delay_s": 5.0,
            "stop_grace_s": 60.0,
        }
    )


def failure_of(service: ServiceStatus) -> str | None:
    """Return why a service has no ready replica; None while it has, or they start."""
    messages = [each.message for each in service.replicas if each.message]
    return messages[-1] if messages and not service.ready else None


def run_control(workspace: Workspace, engine: ServiceEngine) -> None:
    """Have the control plane run, unless it does; one that does not start is replaced."""
    spec = control_service(workspace, engine)
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            found = engine.service(SERVICE)
        except NotFoundError:
            state = None
        else:
            state = found.state
            if state is ServiceState.ACTIVE and not failure_of(found):
                return None
        try:
            return apply_current(engine, spec)
        except EngineError:
            # The one before is about to end, as the last endpoint was deleted.
            if state is not ServiceState.DELETING or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)


def update_control(workspace: Workspace, engine: ServiceEngine) -> None:
    """Have the control plane run as this release, and these settings, say."""
    apply_current(engine, control_service(workspace, engine))

"""The control plane as a service of the engine, which restarts it."""

from __future__ import annotations

import contextlib
import time

from timonel.engines import HealthCheck, ServiceEngine, ServiceSpec, ServiceState, ServiceStatus
from timonel.errors import EngineError, NotFoundError
from timonel.storage import Workspace

SERVICE = "endpoints-controller"
_TIMEOUT_S = 60.0
_POLL_S = 0.1


def apply_current(
    engine: ServiceEngine, spec: ServiceSpec, before: ServiceStatus | None = None
) -> None:
    """Apply a specification, as another revision if it differs from the one applied last.

    It may differ because this is another release.

    Args:
        engine: The engine.
        spec: The specification; its revision does not matter.
        before: Status of the service; None to ask the engine.

    Raises:
        EngineError: The service is being deleted, or the engine cannot start it.
    """
    revision = 1
    with contextlib.suppress(NotFoundError):
        found = before or engine.service(spec.name)
        revision = found.revision + (found.digest != spec.digest)
    engine.apply(spec.model_copy(update={"revision": revision}))


def run_control(workspace: Workspace, engine: ServiceEngine) -> None:
    """Have the control plane run, unless it does.

    Raises:
        EngineError: It cannot be started.
    """
    spec = ServiceSpec(
        name=SERVICE,
        module="timonel.endpoints.control",
        args=(workspace.uri, "$(PORT)"),
        check=HealthCheck(ready_path="/livez", alive_path="/livez", timeout_s=5),
        replicas=1,
        hang_timeout_s=30,
        stop_grace_s=10,
        restart_delay_s=1,
        workspace=workspace.uri,
    )
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            state = engine.service(SERVICE).state
        except NotFoundError:
            state = None
        if state is ServiceState.ACTIVE:
            return
        try:
            apply_current(engine, spec)
        except EngineError:
            # The one before is about to end, as the last endpoint was deleted.
            if state is not ServiceState.DELETING or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)

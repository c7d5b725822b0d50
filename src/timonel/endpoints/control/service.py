"""The control plane as a service of the engine, which restarts it."""

from __future__ import annotations

import time

from timonel.engines import HealthCheck, ServiceEngine, ServiceSpec, ServiceState
from timonel.errors import EngineError, NotFoundError, SpecError
from timonel.storage import Workspace

SERVICE = "endpoints-controller"
_TIMEOUT_S = 60.0
_POLL_S = 0.1


def apply_current(engine: ServiceEngine, spec: ServiceSpec) -> None:
    """Apply the specification of this release, as another revision if it differs from the last.

    Raises:
        EngineError: The service is being deleted, or the engine cannot start it.
    """
    try:
        revision = engine.service(spec.name).revision
    except NotFoundError:
        revision = 1
    try:
        engine.apply(spec.model_copy(update={"revision": revision}))
    except SpecError:  # an earlier release applied other contents
        engine.apply(spec.model_copy(update={"revision": revision + 1}))


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

"""Wait until an endpoint can answer, or it is clear why it cannot."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from timonel.endpoints.control.service import run_control
from timonel.endpoints.engine import engine_of
from timonel.endpoints.folder import EndpointStatus, Revision
from timonel.engines import ServiceStatus
from timonel.errors import ServingError
from timonel.storage import Workspace

_POLL_S, _REMOTE_POLL_S = 0.1, 0.5
_LOOK_S = 5.0
_RETRIED_S = 5.0
"""Time in which the gateway tries again to listen, since a former listener may still end."""


class _Endpoint(Protocol):
    """What is waited for: a handle of an endpoint."""

    @property
    def name(self) -> str: ...
    @property
    def workspace(self) -> Workspace: ...
    @property
    def is_local(self) -> bool: ...
    @property
    def revision(self) -> Revision: ...
    @property
    def status(self) -> EndpointStatus: ...
    @property
    def services(self) -> Mapping[int, ServiceStatus]: ...
    def control_failure(self) -> str | None: ...
    def is_listening(self) -> bool: ...


def wait_until_ready(
    endpoint: _Endpoint, timeout_s: float, on_change: Callable[[EndpointStatus], None] | None
) -> None:
    """Wait until the latest revision is in effect and has a ready replica, or is at zero again.

    Args:
        timeout_s: Time limit in seconds.
    """
    deadline, begun = time.monotonic() + timeout_s, time.time()
    revision, shown, look_at = endpoint.revision, None, time.monotonic() + _LOOK_S
    while True:
        status = endpoint.status
        if status.message is None and (reason := endpoint.control_failure()):
            status = status.model_copy(update={"message": reason})
        if status.message != shown and on_change is not None:
            on_change(status)
            shown = status.message
        if status.rejected and status.at > begun + _RETRIED_S:
            raise ServingError(
                f"the gateway cannot listen for {endpoint.name}: {status.rejected}",
                hint="deploy it with another --host or --port, or delete it",
            )
        done = _applies(revision, status) and (
            any(v.ready for v in status.versions.values()) or _is_idle(revision, status)
        )
        if done and not status.rejected and endpoint.is_listening():
            return
        if any(each.message for each in status.versions.values()):
            _check_starts(endpoint, begun)
        if time.monotonic() > look_at:
            # It may have ended with the endpoint before.
            look_at += _LOOK_S
            run_control(endpoint.workspace, engine_of(endpoint.workspace))
        if time.monotonic() > deadline:
            raise _late(endpoint.name, status, timeout_s)
        time.sleep(_POLL_S if endpoint.is_local else _REMOTE_POLL_S)


def _applies(revision: Revision, status: EndpointStatus) -> bool:
    """Return whether the gateway has a revision, or a later one."""
    if status.applied != revision.number:
        return status.applied > revision.number
    return status.contents == revision.spec.access.contents


def _is_idle(revision: Revision, status: EndpointStatus) -> bool:
    """Return whether the versions have started before, as they are, and are scaled to zero."""
    is_proved = set(revision.spec.traffic.versions) <= set(status.proved)
    return is_proved and status.state(time.time()) == "idle"


def _late(name: str, status: EndpointStatus, timeout_s: float) -> ServingError:
    messages = (each.message for each in status.versions.values() if each.message)
    why = status.message or next(messages, "it starts")
    return ServingError(
        f"{name} is not ready after {timeout_s:g} s: {why}",
        hint=f"see 'timonel endpoints logs {name}'",
    )


def _check_starts(endpoint: _Endpoint, begun: float) -> None:
    """Raise the message of a version whose replicas cannot start, and have failed since."""
    versions = endpoint.revision.spec.traffic.versions
    for version, service in endpoint.services.items():
        is_new = any(each.since > begun for each in service.replicas)
        if version in versions and is_new and (reason := service.start_failure):
            name = endpoint.name
            raise ServingError(
                f"version {version} of {name} does not start: {reason}",
                hint="deploy it with other arguments or another version, or "
                + (
                    f"go back with 'timonel endpoints rollback {name}'"
                    if endpoint.revision.number > 1
                    else f"delete it with 'timonel endpoints delete {name}'"
                ),
            )

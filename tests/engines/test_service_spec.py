from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from timonel.engines import (
    HealthCheck,
    ReplicaStatus,
    ServiceSpec,
    ServiceState,
    ServiceStatus,
)
from timonel.engines.service_spec import ReplicaState, expand, port_variables


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("--port=$(PORT)", "--port=80"),
        ("$$(PORT)", "$(PORT)"),
        ("$(NOSUCH) $PORT ${PORT}", "$(NOSUCH) $PORT ${PORT}"),
        ("$(PORT)$(PORT)", "8080"),
    ],
)
def test_references_are_expanded_as_in_kubernetes(text: str, expanded: str) -> None:
    assert expand(text, {"PORT": "80"}) == expanded


def test_variables_of_ports() -> None:
    found = port_variables({"http": 1, "grpc-web": 2})
    assert found == {"PORT": "1", "PORT_HTTP": "1", "PORT_GRPC_WEB": "2"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"module": None}, "either a module or a command"),
        ({"command": ("envoy",)}, "either a module or a command"),
        ({"ports": ("a", "a")}, "duplicate ports"),
        ({"check": HealthCheck(port="grpc")}, "the checked port grpc"),
        ({"args": ("--port=$(PORT_HTP)",)}, r"\$\(PORT_HTP\) in .* is none of its ports"),
        ({"name": "1st"}, "name"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_specification_that_cannot_work_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ServiceSpec.model_validate({"name": "web", "module": "m", **fields})


def test_the_template_is_everything_but_the_number_of_replicas() -> None:
    spec = ServiceSpec(name="web", module="m")
    assert spec.template == spec.model_copy(update={"replicas": 3}).template
    assert spec.template != spec.model_copy(update={"revision": 2}).template
    assert spec.template == ServiceSpec.model_validate_json(spec.model_dump_json()).template
    in_order, reversed_order = ({"A": "1", "B": "2"}, {"B": "2", "A": "1"})
    assert (
        spec.model_copy(update={"env": in_order}).template
        == spec.model_copy(update={"env": reversed_order}).template
    )


ERROR = "ended with exit code 8: no such file"


def replica(state: ReplicaState, restarts: int = 9, message: str | None = ERROR) -> ReplicaStatus:
    return ReplicaStatus(name="a", revision=1, state=state, restarts=restarts, message=message)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (replica("restarting", 2), ERROR),
        (replica("starting", 3), ERROR),
        (replica("restarting", 1), None),
        (replica("starting", 2), None),
        (replica("ready"), None),
        (replica("unready"), None),
        (replica("stopping"), None),
        (replica("restarting", message="was killed by SIGKILL"), None),
        (replica("restarting", message="ended with exit code 0: done"), None),
        (replica("restarting", message="ended: no such file"), None),
        (replica("starting", 0, None), None),
    ],
)
def test_a_program_that_fails_at_each_start_cannot_start(
    found: ReplicaStatus, reason: str | None
) -> None:
    assert found.start_failure == reason


def test_a_service_cannot_start_if_none_of_its_replicas_can() -> None:
    bad, good, starts = replica("restarting"), replica("ready"), replica("starting", 0, None)
    cases: list[tuple[tuple[ReplicaStatus, ...], str | None]] = [
        ((), None),
        ((bad,), ERROR),
        ((bad, bad), ERROR),
        ((bad, replica("stopping")), ERROR),
        ((bad, good), None),
        ((bad, starts), None),
    ]
    for replicas, reason in cases:
        service = ServiceStatus(
            name="web",
            revision=1,
            state=ServiceState.ACTIVE,
            requested=1,
            replicas=replicas,
        )
        assert service.start_failure == reason

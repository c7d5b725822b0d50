from __future__ import annotations

from typing import Any

from timonel.endpoints.control.plan import (
    Plan,
    initial_replicas,
    plan,
    ready_addresses,
    service_spec,
    services_by_version,
    start_failures,
)
from timonel.endpoints.folder import EndpointStatus, Revision
from timonel.endpoints.gateway.parts import EndpointRoute
from timonel.endpoints.spec import EndpointSpec, Traffic
from timonel.engines import ReplicaStatus, ServiceSpec, ServiceState, ServiceStatus

ADDRESSES = {"http": "127.0.0.1:1", "grpc": "127.0.0.1:2"}


def spec(percent: dict[int, int], **fields: Any) -> EndpointSpec:
    traffic = Traffic(percent=percent)
    return EndpointSpec(name="digits", model="digits", traffic=traffic, port=1, **fields)


def revisions(*specs: EndpointSpec) -> list[Revision]:
    return [
        Revision(number=number, created_at=0, cause="", spec=each)
        for number, each in enumerate(specs, 1)
    ]


def service(
    version: int, ready: int = 1, message: str | None = None, endpoint: str = "digits"
) -> ServiceStatus:
    replicas = [
        ReplicaStatus(name=f"r{i}", revision=1, state="ready", addresses=ADDRESSES)
        for i in range(ready)
    ]
    if message is not None:
        replicas.append(ReplicaStatus(name="bad", revision=1, state="restarting", message=message))
    digest = service_spec(spec({version: 100}), version, "/w").digest
    return ServiceStatus(
        name=f"{endpoint}-v{version}",
        revision=1,
        digest=digest,
        state=ServiceState.ACTIVE,
        requested=ready,
        replicas=tuple(replicas),
    )


def services(*each: ServiceStatus) -> dict[int, ServiceStatus]:
    return services_by_version("digits", each)


def digests(*versions: int) -> dict[int, str]:
    return {each: service_spec(spec({each: 100}), each, "/w").digest for each in versions}


def planned(
    changes: list[Revision], status: EndpointStatus, running: dict[int, ServiceStatus]
) -> Plan:
    def spec_of(revision: Revision, version: int) -> ServiceSpec:
        return service_spec(revision.spec, version, "/w")

    routed = next((each for each in changes if each.number == status.routed), None)
    return plan(changes[-1], routed, status.proved, running, spec_of)


def test_the_first_revision_gets_the_traffic_at_once() -> None:
    found = planned(revisions(spec({1: 100})), EndpointStatus(), {})
    assert (found.routed, found.proved, list(found.services)) == (1, {}, [1])
    made = found.services[1]
    assert made.name == "digits-v1"
    assert made.args[:3] == ("--workspace", "/w", "serve")


def test_a_new_version_gets_traffic_once_it_was_ready() -> None:
    changes = revisions(spec({1: 100}), spec({2: 100}))
    status = EndpointStatus(routed=1, proved=digests(1))
    waiting = planned(changes, status, services(service(1), service(2, 0, "exit 3: boom")))
    assert (waiting.routed, list(waiting.services)) == (1, [1, 2])
    assert waiting.message == "version 2 does not start: exit 3: boom"
    done = planned(changes, status, services(service(1), service(2)))
    assert (done.routed, list(done.services), done.message) == (2, [2], None)


def test_a_version_at_zero_replicas_stays_proved() -> None:
    changes = revisions(spec({1: 100}), spec({1: 50, 2: 50}))
    status = EndpointStatus(routed=2, proved=digests(1, 2))
    found = planned(changes, status, services(service(1, 0), service(2, 0)))
    assert (found.routed, found.proved) == (2, digests(1, 2))


def test_other_settings_of_a_version_must_be_shown_to_start() -> None:
    """Not those with which it was ready before."""
    changes = revisions(spec({1: 100}), spec({1: 100}, server_args=("--no-such-flag",)))
    status = EndpointStatus(routed=1, proved=digests(1))
    running = service(1)
    waiting = planned(changes, status, services(running))
    assert (waiting.routed, waiting.message) == (1, "version 1 starts")
    digest = waiting.services[1].digest
    changed = running.model_copy(update={"revision": 2, "digest": digest})
    assert planned(changes, status, services(changed)).routed == 1  # old replicas only
    new = changed.replicas[0].model_copy(update={"revision": 2})
    replaced = changed.model_copy(update={"replicas": (*changed.replicas, new)})
    done = planned(changes, status, services(replaced))
    assert (done.routed, done.proved) == (2, {1: digest})


def test_a_rollback_keeps_the_service() -> None:
    first, second = spec({1: 100}), spec({1: 100}, server_args=("--max-body", "1KiB"))
    changes = revisions(first, second, first)
    before, changed, rolled = (
        planned(changes[:count], EndpointStatus(routed=count - 1), {}).services[1].digest
        for count in (1, 2, 3)
    )
    assert before == rolled != changed


def test_traffic_and_scaling_do_not_replace_replicas() -> None:
    changes = (spec({1: 100}), spec({1: 90, 2: 10}), spec({1: 10, 2: 90}, limits={"max_held": 5}))
    first, *others = (service_spec(each, 1, "/w").digest for each in changes)
    assert others == [first, first]


def test_a_server_argument_is_not_expanded() -> None:
    found = planned(revisions(spec({1: 100}, server_args=("$(PORT)",))), EndpointStatus(), {})
    assert found.services[1].args[-1] == "$$(PORT)"


def test_a_new_version_starts_with_its_share_of_the_replicas() -> None:
    running = services(service(1, 4))
    assert initial_replicas(spec({1: 50, 2: 50}), 2, running) == 2
    assert initial_replicas(spec({2: 100}), 2, running) == 4
    assert initial_replicas(spec({1: 100, 2: 0}), 2, running) == 1
    capped = spec({2: 100}, scaling={"max_replicas": 3})
    assert initial_replicas(capped, 2, running) == 3
    assert initial_replicas(spec({1: 100}), 1, {}) == 1


def test_routes_have_the_ready_replicas_of_all_services() -> None:
    running = services(service(1, 2), service(2, 0), service(3, 1))
    found = ready_addresses(EndpointRoute(spec({2: 100}), Traffic(percent={1: 100})), running)
    assert {version: len(ready["http"]) for version, ready in found.items()} == {1: 2, 2: 0, 3: 1}
    assert found[3]["grpc"] == ("127.0.0.1:2",)


def test_services_of_an_endpoint_with_a_longer_name_are_not_its_own() -> None:
    running = [service(2), service(1, endpoint="digits-v2"), service(10), service(3, endpoint="d")]
    assert list(services_by_version("digits", running)) == [2, 10]
    assert list(services_by_version("digits-v2", running)) == [1]


def test_clients_are_told_why_replicas_do_not_start_without_the_servers_paths() -> None:
    failed = ReplicaStatus(
        name="a",
        revision=1,
        state="restarting",
        restarts=2,
        message="ended with exit code 8: error: Version 1 of model digits cannot be loaded: the "
        "SavedModel in /srv/team/digits/1 cannot be read: no s3://x/y or 1/2: export the model "
        "again, or remove /srv/team/digits/1",
    )
    running = service(1).model_copy(update={"replicas": (failed,)})
    found = start_failures({"digits-v1": running, "digits-v2": service(2)})
    assert found == {
        "digits-v1": "its replicas do not start: ended with exit code 8: error: Version 1 of model "
        "digits cannot be loaded: the SavedModel in .../1 cannot be read: no s3://x/y or 1/2: "
        "export the model again, or remove .../1"
    }

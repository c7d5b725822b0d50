"""Faults of the control plane and of its view of the gateway; each test counts lost requests."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.endpoints.harness import (
    Endpoints,
    Load,
    ask_by_grpc,
    predict,
    stopped,
    versions_of,
)
from tests.waiting import until
from timonel.cli.render.endpoints import ENDPOINT
from timonel.endpoints import Endpoint, list_endpoints
from timonel.endpoints.control.service import SERVICE
from timonel.endpoints.gateway.process import runtime_dir
from timonel.endpoints.rollouts.documents import Command
from timonel.endpoints.spec import service_name
from timonel.processes.ports import PortReservation

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

MODELS = {1: 1, 2: 2}

SEED = 20261124


@pytest.fixture
def endpoint(endpoints: Endpoints) -> Endpoint:
    """The endpoint ``digits``, of two replicas of version 1."""
    found = endpoints.deploy("digits/1", min_replicas=2, max_replicas=3, timeout_s=60)
    until(lambda: len(endpoints.service(found).ready) == 2)
    return found


def processes(endpoints: Endpoints, endpoint: Endpoint, version: int) -> list[tuple[str, int, int]]:
    """Return names, restarts and PIDs of the replicas of a version."""
    name = service_name(endpoint.name, version)
    found = endpoints.engine.service(name).replicas
    return [(each.name, each.restarts, endpoints.pid(name, each.name)) for each in found]


@pytest.mark.soak
def test_kills_of_the_control_plane_at_random_moments_change_nothing(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    moments = random.Random(SEED)
    before, number = processes(endpoints, endpoint, 1), endpoint.revision.number
    with Load(endpoint, 3, by_grpc=3) as load:
        for _ in range(5):
            pids = endpoints.kill_control()
            until(lambda pids=pids: endpoints.pids(SERVICE) not in ([], pids))  # type: ignore[misc]
            time.sleep(moments.uniform(0, 3))
        last = endpoint.status.at
        until(lambda: endpoint.status.at > last)
        load.more()
    assert load.failures == []
    assert load.asked == load.answered
    assert processes(endpoints, endpoint, 1) == before
    assert (endpoint.revision.number, endpoint.status.routed) == (number, number)


@pytest.mark.soak
def test_a_deployment_survives_kills_of_the_control_plane_at_random_moments(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    moments = random.Random(SEED + 1)
    number = endpoint.revision.number
    with Load(endpoint, 3, by_grpc=3) as load:
        for version in (2, 1, 2):
            endpoints.deploy(f"digits/{version}", wait=False)
            number += 1
            for _ in range(2):
                time.sleep(moments.uniform(0, 3))
                endpoints.kill_control()
            endpoint.wait()
            until(lambda version=version: list(endpoint.services) == [version])  # type: ignore[misc]
            found = processes(endpoints, endpoint, version)
            assert endpoints.kill_control()
            load.more()
        last = endpoint.status.at
        until(lambda: endpoint.status.at > last)
    assert load.failures == []
    assert load.asked == load.answered
    assert load.versions == {"1", "2"}
    assert (endpoint.revision.number, endpoint.status.routed) == (number, number)
    assert processes(endpoints, endpoint, 2) == found


@pytest.mark.soak
def test_a_waiting_control_plane_takes_over(endpoints: Endpoints, endpoint: Endpoint) -> None:
    before = processes(endpoints, endpoint, 1)
    with PortReservation(1) as reserved:
        port = next(iter(reserved)).rpartition(":")[2]
    command = [
        sys.executable,
        "-m",
        "timonel.endpoints.control",
        endpoints.workspace.uri,
        "127.0.0.1",
        port,
    ]
    # Its supervisor is stopped, so the engine starts no other one.
    with (
        stopped(endpoints.supervisor(SERVICE)),
        Load(endpoint, 3, by_grpc=3) as load,
        subprocess.Popen(command, stderr=subprocess.DEVNULL) as second,
    ):
        try:
            waiting = psutil.Process(second.pid)
            until(lambda: any(each.path.endswith(".lock") for each in waiting.open_files()))
            endpoints.kill_control()
            killed_at = time.time()
            until(lambda: endpoint.status.at > killed_at)
            load.more()
            assert processes(endpoints, endpoint, 1) == before
            # A command would ask the stopped supervisor whether the control plane runs.
            scaling = endpoint.spec.scaling.model_copy(update={"min_replicas": 3})
            spec = endpoint.spec.model_copy(update={"scaling": scaling})
            number = endpoint.folder.add(spec, "scale", after=endpoint.revision.number).number
            until(lambda: endpoint.status.routed == number)
            until(lambda: len(endpoints.service(endpoint).ready) == 3)
            load.more()
        finally:
            second.terminate()
    assert load.failures == []
    assert second.returncode == 0
    ended_at = time.time()
    until(lambda: endpoint.status.at > ended_at)
    assert processes(endpoints, endpoint, 1)[:2] == before


def test_requests_are_answered_without_the_gateways_admin_socket(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    endpoints.to_zero(endpoint)
    sockets = runtime_dir(endpoints.workspace.endpoints)
    with ThreadPoolExecutor(20) as pool:
        with stopped(endpoints.supervisor(service_name("digits", 1))):
            held = [pool.submit(predict, endpoint) for _ in range(20)]
            until(lambda: endpoint.status.versions[1].held == 20)
            for path in sockets.glob("admin-*.sock"):
                path.unlink()
        assert versions_of([each.result() for each in held]) == {"1": 20}
    until(lambda: endpoint.state == "ready")
    rollout = endpoint.rollout(2, interval_s=600)
    until(lambda: "statistics cannot be read" in (endpoint.status.message or ""))
    endpoint.command_rollout(Command.ABORT)
    until(lambda: rollout.has_ended)
    endpoints.kill_gateway()  # a new one has a new socket
    until(lambda: list(sockets.glob("admin-*.sock")))


@pytest.mark.parametrize("content", [b"", b"{"])
def test_a_damaged_revision_does_not_stop_requests(
    endpoints: Endpoints, endpoint: Endpoint, content: bytes
) -> None:
    number, url = endpoint.revision.number, f"{endpoint.url}/v1/models/digits:predict"
    path = Path(endpoint.folder.documents.place(f"{endpoint.name}/revisions/{number:06d}.json"))
    text = path.read_bytes()
    path.write_bytes(content)
    try:
        before = endpoint.status.at
        assert endpoints.kill_control()
        until(lambda: endpoint.status.at > before + 2)
        assert str(path) in (endpoint.status.message or "")
        assert endpoints.kill("digits-v1")  # with others, the addresses change
        until(lambda: len(endpoints.service(endpoint).ready) == 2)
        answers = [httpx.post(url, json={"instances": [1.0]}, timeout=60) for _ in range(10)]
        assert versions_of(answers) == {"1": 10}
    finally:
        path.write_bytes(text)
    until(lambda: endpoint.status.message is None, seen=lambda: endpoint.status.message)


def test_a_stopped_control_plane_is_reported(
    endpoints: Endpoints, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.endpoints.folder.STALE_S", 5.0)
    until(lambda: endpoint.state == "ready")
    with stopped(endpoints.supervisor(SERVICE)):  # it would restart the control plane
        pids = endpoints.kill(SERVICE, signal.SIGSTOP)
        try:
            assert pids
            until(lambda: endpoint.state == "stale")
            assert versions_of([predict(endpoint)]) == {"1": 1}
        finally:
            endpoints.kill(SERVICE, signal.SIGCONT)
    until(lambda: endpoint.state == "ready")


def test_an_unreadable_endpoint_affects_no_other(endpoints: Endpoints, endpoint: Endpoint) -> None:
    broken = endpoints.workspace.endpoints / "broken"
    (broken / "revisions").mkdir(parents=True)
    (broken / "revisions" / "000001.json").write_text("{")
    try:
        made = endpoints.deploy("digits/2", name="other")
        assert versions_of([predict(made)]) == {"2": 1}
        made.delete()
        entries = [ENDPOINT.entry(each) for each in list_endpoints(endpoints.workspace)]
        states = {entry["name"]: entry["state"] for entry in entries}
        assert states == {"broken": "unreadable", "digits": "ready"}
    finally:
        Endpoint(endpoints.workspace, "broken").delete()


def test_deleting_an_endpoint_answers_its_held_requests(endpoints: Endpoints) -> None:
    endpoint = endpoints.deploy("digits/1", name="gone", min_replicas=0, timeout_s=60)
    endpoints.to_zero(endpoint)
    with ThreadPoolExecutor(21) as pool:
        with stopped(endpoints.supervisor(service_name("gone", 1))):  # no replica starts
            held: list[Future[httpx.Response]] = [pool.submit(predict, endpoint) for _ in range(20)]
            until(lambda: endpoint.status.versions[1].held == 20)
            deleted = pool.submit(endpoint.delete)
            begun = time.monotonic()
            answers = [each.result() for each in held]
            assert time.monotonic() - begun < 30
        deleted.result()
    found = {(each.status_code, each.text) for each in answers}
    assert found == {(503, '{"error": "no such version of the endpoint"}')}
    assert "gone" not in {each.name for each in list_endpoints(endpoints.workspace)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda each: each.name)
def test_requests_that_wait_outlive_the_control_plane(
    endpoints: Endpoints, number: signal.Signals
) -> None:
    endpoint = endpoints.deploy("digits/1", name="held", min_replicas=0, timeout_s=60)
    endpoint.change("long", limits={"timeout_s": 300.0})
    endpoint.wait()
    endpoints.to_zero(endpoint)
    with ThreadPoolExecutor(180) as pool:
        with stopped(endpoints.supervisor(service_name("held", 1))):  # no replica starts
            held = [pool.submit(predict, endpoint, timeout_s=300) for _ in range(120)]
            held_by_grpc = [pool.submit(ask_by_grpc, endpoint, 1.0, 300) for _ in range(20)]
            until(lambda: endpoint.status.versions[1].held == 140)
            assert endpoints.kill(SERVICE, number)
            held += [pool.submit(predict, endpoint, timeout_s=300) for _ in range(20)]
            until(lambda: endpoint.status.versions[1].held == 160)
        assert Counter(each.result().status_code for each in held) == {200: 140}
        assert {each.result() for each in held_by_grpc} == {1.0}


def test_a_name_may_begin_with_that_of_another_endpoints_service(endpoints: Endpoints) -> None:
    plain = endpoints.deploy("digits/2", name="foo", min_replicas=1, max_replicas=1)
    longer = endpoints.deploy("digits/1", name="foo-v2", min_replicas=1, max_replicas=1)
    with Load(plain, 1) as first, Load(longer, 1) as second:
        found = processes(endpoints, plain, 2), processes(endpoints, longer, 1)
        begun = plain.status.at, longer.status.at
        # Services without traffic end after 2 s.
        until(lambda: plain.status.at > begun[0] + 5 and longer.status.at > begun[1] + 5)
        assert (processes(endpoints, plain, 2), processes(endpoints, longer, 1)) == found
        first.more()
        second.more()
    assert (first.versions, second.versions) == ({"2"}, {"1"})
    plain.delete()
    with Load(longer, 1) as second:
        second.more()
    assert first.failures == second.failures == []
    assert processes(endpoints, longer, 1) == found[1]
    longer.delete()

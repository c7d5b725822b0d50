"""Load from zero and back, hung replicas and slow ones; each test counts lost and wrong answers."""

from __future__ import annotations

import signal
import threading

import httpx
import pytest

from tests.endpoints.harness import SERVER_ARGS, Endpoints, Load
from tests.waiting import until
from timonel.endpoints import Endpoint
from timonel.endpoints.control.scrape import parse_totals
from timonel.endpoints.spec import service_name
from timonel.serving.settings.server import METRICS_PATH

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

COUNTED = 2
MODELS = {1: 1, COUNTED: {"factor": COUNTED, "delay_s": 0.2, "counted": True}}

SERVICE = service_name("digits", 1)


@pytest.fixture
def two_replicas(endpoints: Endpoints) -> Endpoint:
    found = endpoints.deploy("digits/1", min_replicas=2, max_replicas=2, server_args=SERVER_ARGS)
    until(lambda: len(endpoints.service(found).ready) == 2)
    return found


@pytest.mark.soak
def test_200_clients_from_zero_and_back_lose_no_request(endpoints: Endpoints) -> None:
    endpoint = endpoints.deploy("digits/1", min_replicas=0, max_replicas=3)
    endpoints.to_zero(endpoint, target=20.0)
    for _ in range(2):
        # Each answer takes 0.2 s, so that clients wait for replicas and not for each other.
        with Load(endpoint, 100, by_grpc=100, value=1.2) as load:
            until(lambda: len(endpoints.service(endpoint).ready) == 3)
            load.more(2000)
        assert load.failures == []
        assert load.asked == load.answered
        assert load.versions == {"1"}
        endpoints.wait_for_zero(endpoint)
        assert endpoint.status.versions[1].held == 0


def test_a_hung_replica_loses_no_request(endpoints: Endpoints, two_replicas: Endpoint) -> None:
    hung, other = endpoints.service(two_replicas).replicas
    with Load(two_replicas, 4, by_grpc=4) as load:
        endpoints.signal_replica(SERVICE, hung.name, signal.SIGSTOP)
        # The engine kills it after 10 s; its requests are sent to the other one then.
        until(lambda: endpoints.replica(SERVICE, hung.name).restarts > hung.restarts)
        load.more(100)
        until(lambda: len(endpoints.service(two_replicas).ready) == 2)
        load.more(100)
    assert load.failures == []
    assert load.asked == load.answered
    assert "hung" in (endpoints.replica(SERVICE, hung.name).message or "")
    assert endpoints.replica(SERVICE, other.name).restarts == other.restarts


def test_other_arguments_lose_no_request_and_compute_none_twice(endpoints: Endpoints) -> None:
    arguments = ("--runtime", "faulty", "--no-page")
    endpoint = endpoints.deploy(f"digits/{COUNTED}", name="counted", server_args=arguments)
    before = endpoints.pids(service_name("counted", COUNTED))
    with Load(endpoint, 4, by_grpc=4) as load:
        endpoint = endpoints.deploy(
            f"digits/{COUNTED}", name="counted", server_args=(*arguments, "--max-body", "1MiB")
        )
        until(lambda: not set(before) & set(endpoints.pids(service_name("counted", COUNTED))))
        load.more(50)
    endpoint.delete()
    assert load.failures == []
    computed = endpoints.workspace.models / "digits" / f"computed-{COUNTED}"
    assert computed.stat().st_size == load.asked == load.answered


@pytest.mark.soak
def test_a_slow_replica_gets_fewer_requests(endpoints: Endpoints, two_replicas: Endpoint) -> None:
    slow, fast = endpoints.service(two_replicas).replicas
    ends = threading.Event()

    def suspend() -> None:
        while not ends.wait(0.02):
            endpoints.signal_replica(SERVICE, slow.name, signal.SIGSTOP)
            ends.wait(0.7)
            endpoints.signal_replica(SERVICE, slow.name, signal.SIGCONT)

    def answered(address: str) -> float:
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=address.removeprefix("unix:"))
        ) as asking:
            content = asking.get(f"http://localhost{METRICS_PATH}", timeout=60).content
        totals = parse_totals(content, 0)
        assert totals is not None
        return totals.requests

    addresses = [each.addresses["http"] for each in (slow, fast)]
    before = [answered(each) for each in addresses]
    suspending = threading.Thread(target=suspend)
    suspending.start()
    try:
        with Load(two_replicas, 4, by_grpc=4) as load:
            load.more(3000)
    finally:
        ends.set()
        suspending.join()
    assert load.failures == []
    assert load.asked == load.answered
    by_slow, by_fast = (
        after - begun for after, begun in zip(map(answered, addresses), before, strict=True)
    )
    assert by_slow + by_fast == load.answered
    assert by_slow < by_fast
    found = endpoints.service(two_replicas).replicas
    assert [each.restarts for each in found] == [slow.restarts, fast.restarts]

"""Servers of a real model as replicas of a service: scaled, killed and drained under requests."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter

import pytest

from tests.engines.local.services.harness import LocalHarness
from tests.serving.conftest import publish
from tests.waiting import until
from timonel.engines import HealthCheck, ServiceSpec
from timonel.storage import find_workspace

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture
def harness(tmp_path):
    harness = LocalHarness(tmp_path / "workspace" / "services")
    yield harness
    harness.close()


@pytest.fixture
def spec(tmp_path, exports):
    place = find_workspace(tmp_path / "workspace")
    (place.models / "doubler").mkdir()
    publish(exports / "doubler", place.models / "doubler", 1)
    return ServiceSpec(
        name="doubler",
        module="timonel",
        args=("serve", "doubler", "--host", "$(HOST)", "--rest-port", "$(PORT_HTTP)",
              "--grpc-port", "$(PORT_GRPC)"),
        ports=("http", "grpc"),
        check=HealthCheck(ready_path="/readyz", alive_path="/livez", timeout_s=10.0),
        workspace=place.uri,
        hang_timeout_s=60.0,
    )  # fmt: skip


class Client:
    """Sends requests to the ready replicas of a service, one at a time each, until closed."""

    def __init__(self, harness, name):
        self._harness = harness
        self._name = name
        self._closed = threading.Event()
        self._threads = {}
        self.answers = Counter()
        self.failures = Counter()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def close(self):
        self._closed.set()
        self._thread.join()
        for thread in self._threads.values():
            thread.join()

    def _follow(self):
        while not self._closed.wait(0.05):
            for replica in self._harness.engine.service(self._name).ready:
                address = replica.addresses["http"]
                if address not in self._threads:
                    thread = threading.Thread(target=self._ask, args=(replica.name, address))
                    self._threads[address] = thread
                    thread.start()

    def _is_ready(self, address):
        ready = self._harness.engine.service(self._name).ready
        return any(replica.addresses["http"] == address for replica in ready)

    def _ask(self, name, address):
        while not self._closed.is_set() and self._is_ready(address):
            try:
                assert predict(address) == [[4.0, 6.0]]
            except (OSError, http.client.HTTPException, AssertionError):
                self.failures[name] += 1
            else:
                self.answers[name] += 1


def predict(address):
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        body = json.dumps({"instances": [[2.0, 3.0]]})
        connection.request("POST", "/v1/models/doubler:predict", body)
        answer = json.loads(connection.getresponse().read())
        return [row["doubled"] for row in answer["predictions"]]
    finally:
        connection.close()


def test_servers_are_scaled_and_replaced_under_requests(harness, spec):
    harness.engine.apply(spec)

    def settled(count):
        status = harness.engine.service("doubler")
        return status.is_settled and len(status.replicas) == count

    def restarts():
        status = harness.engine.service("doubler")
        return {replica.name: replica.restarts for replica in status.replicas}

    def show():
        return "\n".join([
            str(harness.engine.service("doubler")),
            *(line for replica in harness.engine.service("doubler").replicas
              for line in harness.engine.logs("doubler", replica.name)),
        ])  # fmt: skip

    until(lambda: settled(1), seen=show)
    (first,) = harness.engine.service("doubler").replicas
    client = Client(harness, "doubler")
    try:
        harness.engine.scale("doubler", 3)
        until(lambda: settled(3), seen=show)
        names = {replica.name for replica in harness.engine.service("doubler").replicas}
        until(lambda: all(client.answers[name] >= 10 for name in names))
        assert client.failures == Counter()

        second = next(name for name in sorted(names) if name != first.name)
        harness.kill_replica("doubler", second)
        until(lambda: settled(3) and restarts()[second] == 1, seen=show)
        assert restarts() == {name: int(name == second) for name in names}
        answered = client.answers[second]
        until(lambda: client.answers[second] > answered)

        harness.engine.scale("doubler", 1)
        until(lambda: settled(1), seen=show)
        assert harness.engine.service("doubler").replicas == (first,)
        answered = client.answers[first.name]
        until(lambda: client.answers[first.name] > answered + 10)
    finally:
        client.close()
    assert client.failures[first.name] == 0

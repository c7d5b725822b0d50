"""Contract tests for service engines, as a pytest class.

Subclass it and provide the fixture ``harness``:

    class TestMyServiceEngine(ServiceEngineContract):
        @pytest.fixture
        def harness(self, tmp_path):
            return MyHarness(MyServiceEngine(tmp_path / "services"))
"""

from __future__ import annotations

import abc
import contextlib
import http.client
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contracts.engines.harness import eventually
from timonel.engines import (
    HealthCheck,
    ReplicaStatus,
    ServiceEngine,
    ServiceSpec,
    ServiceState,
    ServiceStatus,
)
from timonel.errors import EngineError, NotFoundError, SpecError

REPLICA_MODULE = "tests.contracts.service_replica"
CHECK = HealthCheck(ready_path="/ready", alive_path="/alive", period_s=0.1, timeout_s=0.5)
_ANSWER_S = 20.0


class ServiceHarness(abc.ABC):
    """A service engine under test.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: ServiceEngine) -> None:
        self.engine = engine

    @abc.abstractmethod
    def kill_replica(self, service: str, replica: str) -> None:
        """Kill the process of a replica with SIGKILL, without telling the engine."""

    @abc.abstractmethod
    def leftovers(self) -> list[str]:
        """Describe the processes of this test's services that still run."""

    def close(self) -> None:
        """Delete all services, and check that no process is left."""
        for status in self.engine.services():
            with contextlib.suppress(NotFoundError):  # the test has deleted it
                self.engine.delete(status.name)
        eventually(lambda: not self.engine.services())
        eventually(lambda: not self.leftovers(), explain=lambda: str(self.leftovers()))

    def spec(self, *modes: str, **fields: Any) -> ServiceSpec:
        """Return a service of one test replica with ``modes``; ``fields`` override the rest."""
        values: dict[str, Any] = {"name": "web", "module": REPLICA_MODULE, "check": CHECK}
        return ServiceSpec.model_validate({**values, "args": modes, "stop_grace_s": 20.0, **fields})

    def apply(self, *modes: str, **fields: Any) -> ServiceStatus:
        """Apply a service as in `spec` and wait until it is settled."""
        spec = self.spec(*modes, **fields)
        self.engine.apply(spec)
        return self.wait_until(lambda status: status.is_settled, spec.name)

    def wait_until(
        self, holds: Callable[[ServiceStatus], bool], name: str = "web"
    ) -> ServiceStatus:
        """Wait for a condition on a service's status, and return that status."""
        found: list[ServiceStatus] = []

        def check() -> bool:
            found.append(self.engine.service(name))
            return holds(found[-1])

        eventually(check, explain=lambda: str(found[-1]))
        return found[-1]

    def wait_for_end(self, name: str = "web") -> None:
        """Wait until a deleted service is gone."""
        eventually(lambda: all(status.name != name for status in self.engine.services()))


class ServiceEngineContract:
    """Contract tests for service engines; see the module docstring for their use."""

    @pytest.fixture(autouse=True)
    def _leave_nothing(self, harness: ServiceHarness) -> Any:
        yield
        harness.close()

    def test_replicas_get_their_ports_and_environment(self, harness: ServiceHarness) -> None:
        args = ("print:port $(PORT_GRPC) of $(MISSING) $$(PORT)",)
        status = harness.apply(
            args=args, ports=("http", "grpc"), env={"COLOUR": "red"}, workspace="file:///space"
        )
        (replica,) = status.replicas
        env = get(replica)["env"]
        assert (env["COLOUR"], env["TIMONEL_WORKSPACE"]) == ("red", "file:///space")
        assert env["PORT"] == env["PORT_HTTP"] == port_of(replica, "http")
        assert env["PORT_GRPC"] == port_of(replica, "grpc") != env["PORT"]
        text = f"port {env['PORT_GRPC']} of $(MISSING) $(PORT)"
        assert get(replica)["args"] == [f"print:{text}"]
        assert text in list(harness.engine.logs("web", replica.name))
        assert (status.revision, replica.revision, replica.restarts) == (1, 1, 0)

    def test_scaling(self, harness: ServiceHarness) -> None:
        first = harness.apply().replicas[0]
        harness.engine.scale("web", 3)
        status = harness.wait_until(lambda s: s.is_settled)
        assert len({process_of(replica) for replica in status.replicas}) == 3
        harness.engine.scale("web", 1)
        assert harness.wait_until(lambda s: s.is_settled).replicas == (first,)
        harness.engine.scale("web", 0)
        assert harness.wait_until(lambda s: s.is_settled).replicas == ()
        harness.engine.scale("web", 1)
        (again,) = harness.wait_until(lambda s: s.is_settled).replicas
        assert again.name != first.name

    def test_applying_the_same_again_changes_nothing(self, harness: ServiceHarness) -> None:
        before = harness.apply(replicas=2)
        harness.engine.apply(harness.spec(replicas=2))
        harness.engine.apply(harness.spec())  # keeps the number of replicas
        assert harness.engine.service("web") == before
        assert harness.engine.services() == [before]

    def test_a_revision_cannot_change(self, harness: ServiceHarness) -> None:
        before = harness.apply()
        other = harness.spec("print:other")
        with pytest.raises(SpecError, match="revision 1 of web was applied with other contents"):
            harness.engine.apply(other)
        assert harness.engine.service("web") == before
        harness.engine.apply(harness.spec(revision=2))
        with pytest.raises(SpecError, match="revision 1 of web was applied with other contents"):
            harness.engine.apply(other)
        assert harness.engine.service("web").revision == 2

    def test_unknown_names_are_errors(self, harness: ServiceHarness) -> None:
        harness.apply()
        with pytest.raises(NotFoundError, match="no such service: nosuch"):
            harness.engine.service("nosuch")
        with pytest.raises(NotFoundError):
            harness.engine.scale("nosuch", 1)
        with pytest.raises(NotFoundError):
            harness.engine.delete("nosuch")
        with pytest.raises(NotFoundError, match="no replica"):
            harness.engine.logs("web", "nosuch")
        with pytest.raises(SpecError, match="-1"):
            harness.engine.scale("web", -1)

    def test_requests_in_flight_are_answered_when_a_replica_stops(
        self, harness: ServiceHarness
    ) -> None:
        (replica,) = harness.apply().replicas
        with ThreadPoolExecutor(1) as pool:
            draining = Connection(replica)
            draining.send("/drain")
            answer = pool.submit(draining.read)
            get(replica)  # the request before is accepted: connections are accepted in order
            harness.engine.scale("web", 0)
            assert answer.result(_ANSWER_S)[0] == 200
        harness.wait_until(lambda s: not s.replicas)

    def test_a_replica_answers_until_clients_have_noticed_that_it_stops(
        self, harness: ServiceHarness
    ) -> None:
        (replica,) = harness.apply(stop_delay_s=1.5).replicas
        harness.engine.scale("web", 0)
        harness.wait_until(lambda s: not s.ready)
        # SIGTERM would have ended it.
        assert get(replica)["pid"] != 0
        harness.wait_until(lambda s: not s.replicas)

    def test_a_replica_that_does_not_stop_is_killed(self, harness: ServiceHarness) -> None:
        harness.apply("ignore-term", "stray", stop_grace_s=0.3)
        harness.engine.delete("web")
        harness.wait_for_end()

    def test_a_killed_replica_is_restarted(self, harness: ServiceHarness) -> None:
        before = harness.apply("stray", replicas=2)
        harness.kill_replica("web", before.replicas[1].name)
        after = harness.wait_until(lambda s: s.is_settled and s.replicas[1].restarts == 1)
        assert after.replicas[0] == before.replicas[0]
        assert after.replicas[1].name == before.replicas[1].name
        assert "SIGKILL" in (after.replicas[1].message or "")
        assert get(after.replicas[1])["pid"] != 0

    def test_a_replica_that_cannot_start_restarts_with_backoff(
        self, harness: ServiceHarness
    ) -> None:
        harness.engine.apply(harness.spec("print:no such model", "exit:3"))
        status = harness.wait_until(lambda s: bool(s.replicas) and s.replicas[0].restarts >= 1)
        (replica,) = harness.wait_until(
            lambda s: bool(s.replicas) and s.replicas[0].state == "restarting"
        ).replicas
        assert replica.message == "ended with exit code 3: no such model"
        assert not status.ready
        harness.engine.delete("web")
        harness.wait_for_end()

    def test_a_replica_that_does_not_get_ready_is_killed(self, harness: ServiceHarness) -> None:
        harness.engine.apply(harness.spec("hang", "stray", start_timeout_s=1.0))
        status = harness.wait_until(lambda s: bool(s.replicas) and s.replicas[0].restarts >= 1)
        assert status.replicas[0].message == "was not ready within 1 s"

    def test_a_hung_replica_is_restarted(self, harness: ServiceHarness) -> None:
        (replica,) = harness.apply(hang_timeout_s=1.0).replicas
        get(replica, "/freeze")
        (after,) = harness.wait_until(
            lambda s: s.is_settled and s.replicas[0].restarts == 1
        ).replicas
        assert (after.message or "").startswith("hung: no answer at /alive for ")

    def test_a_replica_that_is_not_ready_keeps_running(self, harness: ServiceHarness) -> None:
        (replica,) = harness.apply(hang_timeout_s=0.5).replicas
        get(replica, "/unready")
        status = harness.wait_until(lambda s: s.replicas[0].state == "unready")
        assert (status.replicas[0].restarts, status.ready) == (0, ())
        assert not status.is_settled
        get(replica)

    def test_a_change_replaces_replicas_one_by_one(self, harness: ServiceHarness) -> None:
        before = harness.apply(replicas=2)
        harness.engine.apply(harness.spec("print:second", revision=2))
        names = {replica.name for replica in before.replicas}

        def holds(status: ServiceStatus) -> bool:
            assert len(status.ready) >= 2, status
            running = [each for each in status.replicas if each.state != "stopping"]
            assert len(running) <= 3, status
            return status.is_settled

        after = harness.wait_until(holds)
        assert names.isdisjoint({replica.name for replica in after.replicas})
        assert get(after.replicas[0])["args"] == ["print:second"]

    def test_a_bad_revision_leaves_the_old_replicas(self, harness: ServiceHarness) -> None:
        before = harness.apply(replicas=2)
        harness.engine.apply(harness.spec("exit:3", revision=2))
        harness.wait_until(lambda s: any(r.revision == 2 and r.restarts >= 1 for r in s.replicas))
        # Old replicas keep their own specification.
        harness.kill_replica("web", before.replicas[0].name)
        status = harness.wait_until(
            lambda s: len(s.ready) == 2 and any(r.restarts for r in s.ready)
        )
        assert [each.revision for each in status.ready] == [1, 1]
        harness.engine.apply(harness.spec())  # back to the first revision
        after = harness.wait_until(lambda s: s.is_settled)
        assert [r.name for r in after.replicas] == [r.name for r in before.replicas]

    def test_deleting_while_starting(self, harness: ServiceHarness) -> None:
        harness.engine.apply(harness.spec("hang", "stray", replicas=2))
        harness.wait_until(lambda s: len(s.replicas) == 2)
        harness.engine.delete("web")
        harness.wait_for_end()
        with pytest.raises(NotFoundError):
            harness.engine.service("web")

    def test_a_service_that_is_being_deleted_cannot_change(self, harness: ServiceHarness) -> None:
        (replica,) = harness.apply("ignore-term").replicas
        harness.engine.delete("web")
        harness.engine.delete("web")
        assert harness.engine.service("web").state is ServiceState.DELETING
        with pytest.raises(EngineError, match="web is being deleted"):
            harness.engine.apply(harness.spec())
        with pytest.raises(EngineError, match="web is being deleted"):
            harness.engine.scale("web", 2)
        harness.kill_replica("web", replica.name)
        harness.wait_for_end()
        harness.apply()

    def test_several_appliers_at_once(self, harness: ServiceHarness) -> None:
        ready = threading.Barrier(4)

        def apply(revision: int) -> None:
            ready.wait()
            harness.engine.apply(harness.spec(revision=revision, replicas=2))

        with ThreadPoolExecutor(4) as pool:
            for each in [pool.submit(apply, revision) for revision in (1, 1, 2, 2)]:
                each.result(_ANSWER_S)
        status = harness.wait_until(lambda s: s.is_settled)
        assert len({process_of(replica) for replica in status.replicas}) == 2
        assert status.revision in {1, 2}

    def test_following_the_logs_of_a_replica(self, harness: ServiceHarness) -> None:
        (replica,) = harness.apply("print:hello").replicas
        lines = harness.engine.logs("web", replica.name, follow=True)
        assert any(line == "hello" for line in lines)
        harness.engine.delete("web")
        assert list(lines) == []


class Connection:
    """An HTTP connection to a replica."""

    def __init__(self, replica: ReplicaStatus) -> None:
        self._http = http.client.HTTPConnection(replica.addresses["http"], timeout=_ANSWER_S)
        self._http.connect()

    def send(self, path: str) -> None:
        """Send a request."""
        self._http.request("GET", path)

    def read(self) -> tuple[int, bytes]:
        """Return status and body of the answer."""
        answer = self._http.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


def get(replica: ReplicaStatus, path: str = "/") -> Any:
    """Return the JSON that a replica answers to a request."""
    connection = Connection(replica)
    try:
        connection.send(path)
        status, body = connection.read()
    finally:
        connection.close()
    assert status == 200, body
    return json.loads(body)


def process_of(replica: ReplicaStatus) -> tuple[str, str, int]:
    """Return host, port and process of a replica, by its answer; containers number their own."""
    answer = get(replica)
    return answer["env"]["HOST"], answer["env"]["PORT"], answer["pid"]


def port_of(replica: ReplicaStatus, name: str) -> str:
    """Return the number of a port of a replica, as text."""
    return replica.addresses[name].rpartition(":")[2]

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.contracts.engines.harness import eventually
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.api_errors import ClusterUnavailableError
from timonel.engines.kubernetes.services.leadership import LEASE_S, Leadership
from timonel.errors import NotFoundError

pytestmark = pytest.mark.enable_socket


class Replicas:
    """Replicas on one clock, which ask once a second and send their requests at once."""

    def __init__(self, api: Api) -> None:
        self.now = 1000.0
        self._api = api

    def add(self, name: str, owner: tuple[str, str] | None = None) -> Leadership:
        return Leadership(
            self._api,
            "endpoints",
            name,
            owner=owner,
            start=lambda attempt: attempt(),
            clock=lambda: self.now,
        )

    def wait_until(self, holds: Callable[[], bool]) -> float:
        """Ask each second, and return how long it took."""
        before = self.now
        while not holds():
            self.now += 1.0
            assert self.now < before + 100
        return self.now - before


@pytest.fixture
def replicas(api: Api) -> Replicas:
    return Replicas(api)


def holder(api: Api) -> str:
    return str(api.get("Lease", "endpoints")["spec"]["holderIdentity"])


def away(*_: Any) -> Any:
    raise ClusterUnavailableError("the cluster does not answer")


def test_one_of_two_replicas_leads(api: Api, replicas: Replicas) -> None:
    first, second = replicas.add("a"), replicas.add("b")
    for _ in range(100):
        assert (first.holds(), second.holds()) == (True, False)
        replicas.now += 1.0
    assert holder(api) == "a"
    lease = api.get("Lease", "endpoints")
    assert lease["spec"]["leaseDurationSeconds"] == LEASE_S
    assert lease["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "timonel"


def test_the_other_one_leads_at_once_after_a_release(api: Api, replicas: Replicas) -> None:
    first, second = replicas.add("a"), replicas.add("b")
    assert first.holds()
    assert not second.holds()
    first.release()
    assert replicas.wait_until(second.holds) == 1.0
    assert not first.holds()
    first.release()
    second.release()
    assert holder(api) == ""


def test_the_other_one_leads_after_the_first_has_ended(api: Api, replicas: Replicas) -> None:
    first, second = replicas.add("a"), replicas.add("b")
    assert first.holds()
    assert not second.holds()
    assert LEASE_S < replicas.wait_until(second.holds) <= LEASE_S + 2
    assert holder(api) == "b"
    assert not first.holds()


def test_a_restarted_replica_takes_its_own_lease(replicas: Replicas) -> None:
    assert replicas.add("a").holds()
    assert replicas.add("a").holds()


def test_leaders_never_overlap_if_requests_stop_at_any_time(
    replicas: Replicas, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replicas.add("a")
    monkeypatch.setattr(first, "_api", Api("team", api._client, sleep=lambda _: None))
    for after in range(8):
        second = replicas.add("b")
        replicas.wait_until(first.holds)
        for _ in range(after):
            replicas.now += 1.0
            assert (first.holds(), second.holds()) == (True, False)
        with monkeypatch.context() as patched:
            for verb in ("get", "patch", "create"):
                patched.setattr(first._api, verb, away)
            lost_after = replicas.wait_until(lambda: not first.holds())
            assert 6.0 < lost_after <= 12.0
            assert not second.holds()
            replicas.wait_until(second.holds)
            assert not first.holds()
        second.release()


def test_a_cluster_that_is_away_for_a_few_seconds_changes_nothing(
    replicas: Replicas, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = replicas.add("a")
    assert leader.holds()
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(api, "patch", away)
            for _ in range(11):
                replicas.now += 1.0
                assert leader.holds()
        assert leader.holds()
        replicas.now += 1.0
        assert leader.holds()  # renewed


def test_a_request_that_came_through_without_an_answer_is_no_loss(
    replicas: Replicas, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = replicas.add("a")
    assert leader.holds()
    patch = api.patch

    def unanswered(*args: Any) -> Any:
        patch(*args)
        return away()

    with monkeypatch.context() as patched:
        patched.setattr(api, "patch", unanswered)
        replicas.now += 6.0
        assert leader.holds()
    for _ in range(30):
        replicas.now += 1.0
        assert leader.holds()


def test_a_lease_that_another_one_holds_is_lost_at_once(api: Api, replicas: Replicas) -> None:
    leader = replicas.add("a")
    assert leader.holds()
    api.patch("Lease", "endpoints", {"spec": {"holderIdentity": "b"}})
    replicas.now += 5.0
    assert not leader.holds()
    leader.release()
    assert holder(api) == "b"


def test_a_deleted_lease_is_created_again(api: Api, replicas: Replicas) -> None:
    leader = replicas.add("a")
    assert leader.holds()
    api.delete("Lease", "endpoints")
    replicas.now += 5.0
    assert leader.holds()
    assert holder(api) == "a"


def test_the_lease_is_deleted_with_the_service(api: Api, replicas: Replicas) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "service"}}
    api.create(owner)
    leader = replicas.add("a", owner=("ConfigMap", "service"))
    assert leader.holds()
    api.delete("ConfigMap", "service")
    with pytest.raises(NotFoundError):
        api.get("Lease", "endpoints")
    replicas.now += 5.0
    # Without the service, there is nothing to lead.
    assert not leader.holds()
    leader.release()
    with pytest.raises(NotFoundError):
        api.get("Lease", "endpoints")


def test_the_duration_is_that_of_the_holder(api: Api, replicas: Replicas) -> None:
    assert replicas.add("a").holds()
    api.patch("Lease", "endpoints", {"spec": {"leaseDurationSeconds": 40}})
    second = replicas.add("b")
    assert 40 < replicas.wait_until(second.holds) <= 42


def test_of_two_that_take_it_at_once_one_is_refused(
    api: Api, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas.add("a").holds()
    api.patch("Lease", "endpoints", {"spec": {"holderIdentity": ""}})
    stale = api.get("Lease", "endpoints")
    first, second = replicas.add("b"), replicas.add("c")
    assert first.holds()
    with monkeypatch.context() as patched:
        patched.setattr(api, "get", lambda *_: stale)
        assert not second.holds()
    assert holder(api) == "b"


def test_a_cluster_that_does_not_answer_blocks_nobody(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()
    get = api.get

    def slow(*args: str) -> dict[str, Any]:
        asked.set()
        assert answered.wait(20.0)
        return get(*args)

    monkeypatch.setattr(api, "get", slow)
    leader = Leadership(api, "endpoints", "a")
    assert not leader.holds()
    assert asked.wait(20.0)
    assert not leader.holds()
    answered.set()
    eventually(leader.holds)
    leader.release()
    assert holder(api) == ""

from __future__ import annotations

from typing import Any

import pytest

from timonel.engines.kubernetes import lease as module
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.lease import LEASE_S, Lease, LostLeaseError

pytestmark = pytest.mark.enable_socket


class Clock:
    """A clock that goes on while somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(autouse=True)
def _lease(api: Api) -> None:
    create(api, "coordination.k8s.io/v1", "Lease", "job")


def create(api: Api, version: str, kind: str, name: str) -> dict[str, Any]:
    return api.create({"apiVersion": version, "kind": kind, "metadata": {"name": name}})


def holder(api: Api) -> str:
    return str(api.get("Lease", "job")["spec"]["holderIdentity"])


def test_a_coordinator_takes_a_free_lease_and_gives_it_back(api: Api, clock: Clock) -> None:
    lease = Lease(api, "job", "pod-a")
    lease.acquire(clock.wait)
    assert (holder(api), clock.now) == ("pod-a", 1000.0)
    lease.release()
    assert holder(api) == ""


def test_the_next_one_waits_until_the_lease_is_old(api: Api, clock: Clock) -> None:
    create(api, "v1", "Pod", "pod-a")
    Lease(api, "job", "pod-a").acquire(clock.wait)
    Lease(api, "job", "pod-b").acquire(clock.wait)
    assert holder(api) == "pod-b"
    assert LEASE_S < clock.now - 1000.0 < LEASE_S + 3


def test_a_lease_that_is_renewed_is_not_taken(api: Api, clock: Clock) -> None:
    create(api, "v1", "Pod", "pod-a")
    first = Lease(api, "job", "pod-a")
    first.acquire(clock.wait)

    def wait(seconds: float) -> None:
        clock.wait(seconds)
        first.renew()
        if clock.now > 1000.0 + 5 * LEASE_S:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        Lease(api, "job", "pod-b").acquire(wait)
    assert holder(api) == "pod-a"


def test_the_lease_of_a_pod_that_is_gone_is_taken_at_once(api: Api, clock: Clock) -> None:
    Lease(api, "job", "pod-a").acquire(clock.wait)
    Lease(api, "job", "pod-b").acquire(clock.wait)
    assert (holder(api), clock.now) == ("pod-b", 1000.0)


def test_who_has_lost_the_lease_does_not_renew_or_release_it(api: Api, clock: Clock) -> None:
    first = Lease(api, "job", "pod-a")
    first.acquire(clock.wait)
    Lease(api, "job", "pod-b").acquire(clock.wait)
    clock.wait(20.0)
    with pytest.raises(LostLeaseError, match="another coordinator works on this job"):
        first.renew()
    first.release()
    assert holder(api) == "pod-b"


def test_an_api_server_that_is_away_for_less_than_the_lease_matters_not(
    api: Api, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(api, "job", "pod-a")
    lease.acquire(clock.wait)
    monkeypatch.setattr(api, "get", _away)
    clock.wait(LEASE_S - 1)
    with pytest.raises(module.TimonelError) as found:
        lease.renew()
    assert not isinstance(found.value, LostLeaseError)
    clock.wait(2)
    with pytest.raises(LostLeaseError, match="could not be renewed for 60 s"):
        lease.renew()


def test_a_lease_ends_while_a_request_hangs(
    api: Api, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(api, "job", "pod-a")
    lease.acquire(clock.wait)

    def hang(*_: object) -> dict[str, Any]:
        clock.wait(LEASE_S - 15)
        lease.check()
        clock.wait(10)
        with pytest.raises(LostLeaseError, match="could not be renewed for 60 s"):
            lease.check()
        return _away()

    monkeypatch.setattr(api, "get", hang)
    clock.wait(14)
    with pytest.raises(LostLeaseError):
        lease.renew()


def test_of_two_that_take_it_at_once_one_is_refused(
    api: Api, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = api.get("Lease", "job")
    Lease(api, "job", "pod-a").acquire(clock.wait)
    create(api, "v1", "Pod", "pod-a")
    answers = iter([stale])
    get = api.get
    monkeypatch.setattr(api, "get", lambda kind, name: next(answers, None) or get(kind, name))
    Lease(api, "job", "pod-b").acquire(clock.wait)
    assert clock.now - 1000.0 > LEASE_S


def _away(*_: object) -> dict[str, Any]:
    raise module.TimonelError("the API server does not answer")

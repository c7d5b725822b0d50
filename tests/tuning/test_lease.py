"""The lease of a study: one controller at a time, of all machines."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from timonel.errors import SpecError
from timonel.storage.object_store import ObjectStore
from timonel.tuning import lease
from timonel.tuning.lease import ControllerLease, LostLeaseError

Machine = Callable[[str], ControllerLease]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a lease of one study as on several machines."""
    uri = f"memory://{uuid.uuid4().hex}"

    def make(name: str) -> ControllerLease:
        folder = tmp_path / name / "digits"
        folder.mkdir(parents=True, exist_ok=True)
        return ControllerLease(ObjectStore(uri, patience_s=0.0), folder, lambda: None)

    return make


def kill(held: ControllerLease) -> None:
    """Acquire a lease that is neither renewed nor released, as by a process that was killed."""
    held._acquire(lambda _: None)


def test_a_released_lease_is_free_at_once(machine: Machine) -> None:
    for name in ("a", "b", "a"):
        with machine(name).held(wait=lambda _: pytest.fail("waited")):
            assert machine("c").is_alive
        assert not machine("c").is_alive


def test_a_living_controller_keeps_the_lease(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    with machine("a").held(), pytest.raises(SpecError, match="runs the study digits"):
        machine("b")._acquire(lambda _: None)


def test_a_killed_controller_loses_the_lease(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SILENT_S", 0.05)
    waited: list[float] = []
    kill(machine("a"))
    with machine("b").held(wait=waited.append):
        assert waited


def test_a_controller_of_the_same_copy_is_not_waited_for(machine: Machine) -> None:
    # The caller holds the lock of the copy, so the earlier process is dead.
    kill(machine("a"))
    assert not machine("a").is_alive
    with machine("a").held(wait=lambda _: pytest.fail("waited")):
        pass


def test_a_controller_that_comes_back_finds_its_successor(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SILENT_S", 0.05)
    early = machine("a")
    kill(early)
    with machine("b").held(wait=lambda _: None):
        with pytest.raises(LostLeaseError, match="the study digits continues on the machine"):
            early.check()
        assert early.is_lost


def test_a_controller_notices_by_itself(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SILENT_S", 0.05)
    monkeypatch.setattr(lease, "RENEW_S", 0.0)
    early = machine("a")
    kill(early)
    kill(machine("b"))
    early._renew_until(threading.Event())
    assert early.is_lost

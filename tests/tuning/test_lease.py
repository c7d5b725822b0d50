"""The lease of a study: one controller at a time, of all machines."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from timonel.errors import SpecError
from timonel.storage.object_store import ObjectStore
from timonel.tuning import lease
from timonel.tuning.lease import ControllerLease, LostStudyError

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
        with pytest.raises(LostStudyError, match="the study digits continues on the machine"):
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


def test_a_controller_renews_again_after_any_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.0)
    ended = threading.Event()
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(len(ticks))
        if len(ticks) == 1:
            raise OSError(28, "No space left on device")
        ended.set()

    held = machine("a")
    kill(held)
    held._tick = tick
    held._renew_until(ended)
    assert ticks == [0, 1]
    assert not held.is_lost
    assert "cannot renew the lease of the study digits" in caplog.text


def test_a_controller_that_cannot_renew_for_a_minute_may_have_lost_the_study(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = machine("a")
    kill(held)
    now = time.monotonic()
    monkeypatch.setattr(lease.time, "monotonic", lambda: now + lease.SILENT_S + 1)
    assert held.is_lost
    held.check()  # nobody has taken it
    monkeypatch.setattr(lease, "RENEW_S", 0.0)
    ended = threading.Event()
    held._tick = ended.set
    held._renew_until(ended)
    assert not held.is_lost

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from timonel.training.worker.ps import roles
from timonel.training.worker.termination import Terminated, Termination


@pytest.fixture
def termination() -> Iterator[Termination]:
    before = signal.getsignal(signal.SIGTERM)
    found = Termination()
    found.install()
    yield found
    signal.signal(signal.SIGTERM, before)


class Signals:
    """Sends SIGTERM in place of certain waits."""

    def __init__(self, *at: int) -> None:
        self.waits = 0
        self._at = at

    def __call__(self, _seconds: float) -> None:
        self.waits += 1
        assert self.waits < 20
        if self.waits in self._at:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_parameter_server_lets_the_chief_save(termination: Termination, tmp_path: Path) -> None:
    with pytest.raises(Terminated):
        roles.leave_after_saving(termination, tmp_path / "requests", Signals(3, 9))
    assert (tmp_path / "requests" / "leave").read_text() == ""


def test_nobody_is_asked_when_the_job_is_over(termination: Termination, tmp_path: Path) -> None:
    signals = Signals(3, 4)  # the engine tells twice those that have nothing left to do
    with pytest.raises(Terminated):
        roles.leave_after_saving(termination, tmp_path / "requests", signals)
    assert signals.waits == 4
    assert not (tmp_path / "requests").exists()

from __future__ import annotations

import time

import pytest

from timonel.processes.clock import SteadyClock


def test_it_tells_the_time_and_ignores_changes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time()
    clock = SteadyClock()
    assert before - 1 < clock() < before + 60
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clock() > before - 1

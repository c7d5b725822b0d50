"""Kill the supervisor at each step of starting and stopping a replica, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.engines import eventually
from tests.contracts.services import get
from tests.engines.local.services.crashing_daemon import START_POINTS, STOP_POINTS
from tests.engines.local.services.harness import LocalHarness

pytestmark = pytest.mark.process


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path / "services")
    yield harness
    harness.close()


@pytest.fixture
def crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> Path:
    """Have the supervisor killed at the point of the test; return a file that exists afterwards."""
    monkeypatch.setattr(
        "timonel.engines.local.services.engine._DAEMON",
        "tests.engines.local.services.crashing_daemon",
    )
    monkeypatch.setenv("CRASH_POINT", point)
    monkeypatch.setenv("CRASH_FILE", str(tmp_path / "crashed"))
    return tmp_path / "crashed"


def replicas(harness: LocalHarness) -> list[str]:
    return [text for _, text in harness.processes() if "service_replica" in text]


@pytest.mark.parametrize("point", START_POINTS)
def test_a_crash_during_a_start_starts_nothing_twice(
    harness: LocalHarness, crash: Path, point: str
) -> None:
    harness.engine.apply(harness.spec(replicas=2))
    eventually(crash.exists)
    status = harness.wait_until(lambda s: s.is_settled)
    eventually(lambda: len(replicas(harness)) == 2)
    assert len({get(each)["pid"] for each in status.replicas}) == 2
    harness.engine.delete("web")
    harness.wait_for_end()


@pytest.mark.parametrize("point", STOP_POINTS)
def test_a_crash_during_a_stop_forgets_nothing(
    harness: LocalHarness, crash: Path, point: str
) -> None:
    harness.apply("stray", replicas=2)
    assert not crash.exists()
    harness.engine.delete("web")
    eventually(crash.exists)
    harness.wait_for_end()
    eventually(lambda: not harness.leftovers())

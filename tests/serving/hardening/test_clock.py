"""The system's clock is set, a day forth and back, while clients ask; only dates may notice."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.serving.hardening.harness import (
    GrpcClient,
    RestClient,
    asking,
    publish,
    serving,
    states,
)
from tests.serving.hardening.page import note
from tests.serving.hardening.test_compute import answer_of, body
from tests.waiting import until
from timonel.serving.settings.server import RestSettings

LIBRARIES = [
    path
    for folder in ("/usr/lib", "/usr/local/lib", "/opt/homebrew/lib")
    for path in sorted(Path(folder).glob("**/faketime/libfaketime.so.1"))
]
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not LIBRARIES, reason="needs libfaketime"),
]
DAY_S = 86_400


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """A file with the seconds that servers' clocks are ahead; monotonic ones stay as they are."""
    path = tmp_path / "offset"
    path.write_text("+0\n")
    monkeypatch.setenv("LD_PRELOAD", str(LIBRARIES[0]))
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(path))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    return path


class Steps:
    """Sets the clock again and again during a block."""

    def __init__(self, path):
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._step)
        self.count = 0

    def _step(self):
        while not self._stop.wait(0.05):
            offset = (DAY_S, -DAY_S, 3600, -1)[self.count % 4]
            aside = self._path.with_suffix(".new")
            aside.write_text(f"{offset:+d}\n")
            aside.rename(self._path)
            self.count += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def timed(client):
    began = time.monotonic()
    outcome = answer_of(client)
    client.close()
    return outcome, time.monotonic() - began


def test_deadlines_swaps_and_hangs(workspace, m, clock):
    publish(workspace.models / "bad", 1, faulty=True)
    rest = RestSettings(timeout_s=2.0)
    with (
        serving(workspace, "m", "bad", rest=rest) as server,
        Steps(clock) as steps,
        asking(RestClient(server), GrpcClient(server)) as told,
    ):
        for number in range(2, 22):
            publish(m, number, marked=False)
            until(lambda number=number: states(server).get(number) == "AVAILABLE")
        for _ in range(5):
            (good, content), took_s = timed(RestClient(server, "bad", body("sleep", 1.0)))
            assert good, content
            # Not of a second, as tests share the machine; a step would make it an hour.
            assert took_s < 8
            (good, content), took_s = timed(RestClient(server, "bad", body("sleep", 3.0)))
            assert not good
            assert b"Timed out" in content or b"eadline" in content, content
            assert 1.9 < took_s < 8
    # gRPC's library keeps a deadline as a time of day until it is asked how long is left of it.
    assert told.failed.keys() <= {"DEADLINE_EXCEEDED Deadline Exceeded"}
    assert sum(told.failed.values()) <= steps.count / 50
    assert steps.count > 50
    note(
        f"{steps.count} steps of the clock by a day",
        f"20 swaps, {told.asked} requests, 0 failed; deadlines were kept",
    )

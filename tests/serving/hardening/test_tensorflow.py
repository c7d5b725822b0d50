"""Hot swaps of real SavedModels."""

from __future__ import annotations

import shutil

import pytest

from tests.serving.conftest import publish
from tests.serving.hardening.harness import (
    GrpcClient,
    RestClient,
    Usage,
    asking,
    serving,
    settled,
    states,
)
from tests.serving.hardening.page import note
from tests.waiting import until
from timonel.serving.settings.runtime import RuntimeSettings

pytestmark = pytest.mark.soak

SWAPS = 60
TENSORFLOW = RuntimeSettings(name="tensorflow")


def test_hot_swaps_of_savedmodels(workspace, exports):
    base = workspace.models / "m"
    base.mkdir(parents=True)
    publish(exports / "versioned-1", base, 1)
    with serving(workspace, "m", runtime=TENSORFLOW) as server:
        clients = [make(server) for make in (RestClient, GrpcClient) for _ in range(2)]
        with asking(*clients) as told:
            until(lambda: told.asked > 100)
            top = 1
            for step in range(SWAPS):
                if step == SWAPS // 6:
                    before = Usage.of(server)
                if step % 4 == 3:
                    shutil.rmtree(base / str(top))
                    top -= 1
                else:
                    top += 1
                    publish(exports / f"versioned-{1 + top % 3}", base, top)
                until(lambda top=top: states(server).get(top) == "AVAILABLE", 120)
            until(lambda: list(states(server).values()).count("AVAILABLE") == 1)
            after = settled(server, before)
    assert told.failed == {}
    assert told.values.keys() == {1.0, 2.0, 3.0}
    assert after.processes <= before.processes
    note(
        f"{SWAPS} hot swaps of SavedModels, 4 clients",
        f"{told.asked} requests, 0 failed; p99 {told.p99_ms():.0f} ms; {before} after "
        f"{SWAPS // 6}, {after} in the end",
    )

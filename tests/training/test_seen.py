"""What a job of two workers shows of itself."""

from __future__ import annotations

from itertools import groupby

import pytest

from tests.training.conftest import SCRIPTS, BareEngine, log_of
from timonel.storage import Workspace
from timonel.training import train


@pytest.mark.process
def test_each_worker_tells_its_own_pace_and_has_its_profile(
    jobs_workspace: Workspace, engine: BareEngine
) -> None:
    run = train(SCRIPTS / "uneven.py", workers=2, profile="5:8", workspace=jobs_workspace,
                on=engine)  # fmt: skip
    events = run.record.events()
    told = sorted((event for event in events if event["type"] == "pace"), key=lambda e: e["task"])
    work, wait = {}, {}
    for task, reports in groupby(told, key=lambda event: event["task"]):
        found = list(reports)
        steps = sum(event["steps"] for event in found)
        work[task] = sum(event["steps"] * event["step_ms"] for event in found) / steps
        wait[task] = sum(event["steps"] * event["wait_ms"] for event in found) / steps
        assert 0 < steps < 30
        # Batches of 16, half of which are each worker's.
        rates = [8000 / (e["step_ms"] + e["wait_ms"]) for e in found]
        assert [event["examples_per_s"] for event in found] == pytest.approx(rates, rel=0.01)
    assert set(work) == {"chief-0", "worker-0"}
    # One sleeps for 200 ms, part of which may pass while it waits for the other (data is fetched
    # ahead); the other waits for it; their steps are equally long.
    assert work["worker-0"] > 150
    assert wait["chief-0"] > wait["worker-0"]
    assert work["worker-0"] > 1.5 * work["chief-0"]

    profiles = [event for event in events if event["type"] == "profile"]
    if run.record.restarts:  # TensorFlow itself can crash when a second worker ends a profile
        assert 1 <= len(profiles) <= 1 + run.record.restarts
        assert "has crashed when it collected them" in log_of(run, "worker-0")
        return
    assert len(profiles) == 1
    profile = profiles[-1]
    folder = jobs_workspace.jobs / run.id / "tensorboard" / "plugins" / "profile" / "steps_5_to_8"
    assert profile["path"] == str(folder / "chief-0.xplane.pb")
    assert sorted(path.name for path in folder.iterdir()) == [
        "chief-0.xplane.pb", "worker-0.xplane.pb",
    ]  # fmt: skip
    assert "profiled steps 5 to 8" in log_of(run, "worker-0")

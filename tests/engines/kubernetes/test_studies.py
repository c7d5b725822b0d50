"""Studies whose trials run on the fake cluster; their controllers share only the bucket with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.engines.kubernetes.fake_cluster import FakeCluster
from tests.waiting import until
from timonel.data import convert
from timonel.engines import JobState
from timonel.engines.kubernetes import KubernetesEngine
from timonel.storage import Workspace, find_workspace
from timonel.storage.filesystems import open_filesystem
from timonel.tracking import list_runs
from timonel.tuning import lease, list_studies, open_study, resume

pytestmark = [pytest.mark.enable_socket, pytest.mark.process, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).parents[2] / "tuning" / "scripts" / "measured.py"
PROGRAM = """
import sys
from timonel.tuning import tune
tune("measured.py", ["x=values(0.1,0.3,0.9)", "epochs=6", "pause=1"], "score", data="set",
     thresholds=["latency <= 0.5"], algorithm="grid", trials=3, parallel=2, study="far",
     strategy="none", workspace=sys.argv[1], on="kubernetes")
"""
# The third trial ends when the test has seen it: it may be alone on a fast machine.
GATE = """
from contextlib import suppress
gate = Path({gate!r})
for turn in range(3):
    with suppress(FileExistsError):
        gate.joinpath(str(turn)).mkdir(parents=True)
        break
while turn == 2 and not gate.joinpath("open").exists():
    time.sleep(0.1)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script and a dataset."""
    folder = tmp_path / "laptop" / "project"
    raw = tmp_path / "raw"
    for number in range(12):
        label = raw / ("even", "odd")[number % 2]
        label.mkdir(parents=True, exist_ok=True)
        pixels = np.full((4, 4), number * 20, np.uint8)
        Image.fromarray(pixels).save(label / f"{number}.png")
    folder.mkdir(parents=True)
    gate = GATE.format(gate=str(tmp_path / "gate"))
    (folder / SCRIPT.name).write_text(SCRIPT.read_text() + gate)
    convert(raw, folder / "set", workspace=tmp_path / "conversions")
    return folder


def uploads(bucket: Workspace) -> dict[str, object]:
    """Return when programs and datasets were uploaded."""
    fs, root = open_filesystem(bucket.uri)
    return {
        name: info["LastModified"]
        for folder in ("sources", "staged")
        for name, info in fs.find(f"{root}/{folder}", detail=True).items()
    }


@contextmanager
def laptop(
    project: Path, bucket: Workspace, log: Path
) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Run the study's controller, and kill it at the end; yield how to wait for what it does."""
    command = [sys.executable, "-c", PROGRAM, bucket.uri]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=project, stderr=output)

    def seen(condition: Callable[[], object]) -> None:
        def holds() -> bool:
            assert process.poll() is None, log.read_text()
            return bool(condition())

        until(holds, poll_s=0.5)

    try:
        yield seen
    finally:
        process.kill()
        process.wait()


def test_a_study_of_a_lost_machine_continues_on_another(
    bucket: Workspace,
    cluster: FakeCluster,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "laptop" / "cache"))
    desk = find_workspace(bucket.uri)
    with laptop(project, bucket, tmp_path / "laptop.log") as seen:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "desk" / "cache"))
        seen(lambda: list_studies(desk))
        found = open_study(desk, "far")
        seen(lambda: found.is_running)
        engine = KubernetesEngine.of(desk)
        # Seen from here while they run: one has ended, and the job of the last one has begun.
        seen(lambda: any(trial.ended_at for trial in found.trials))
        seen(lambda: len(found.trials) == 3)
        last = str(found.trials[2].run_id)
        seen(lambda: last in engine.job_ids() and engine.status(last).state is not JobState.PENDING)
        before = {trial.number: (trial.params, trial.run_id) for trial in found.trials}
        uploaded = uploads(bucket)

    there = tmp_path / "desk" / "project"
    shutil.copytree(project, there)
    shutil.rmtree(tmp_path / "laptop")
    monkeypatch.chdir(there)
    monkeypatch.setattr(lease, "SILENT_S", 2.0)
    (tmp_path / "gate" / "open").touch()
    found = resume("far", workspace=desk)

    trials = found.trials
    assert {trial.number: (trial.params, trial.run_id) for trial in trials} == before
    assert {float(trial.params["x"]): (trial.status, trial.reason) for trial in trials} == {
        0.1: ("succeeded", ""),
        0.3: ("succeeded", ""),
        0.9: ("infeasible", "latency is 0.9, above 0.5"),
    }
    assert [found.best_trials[0].params["x"], found.best_trials[0].values] == [0.3, (0.0,)]
    assert [len(trial.curve) for trial in trials] == [6, 6, 6]
    runs = [run for run in list_runs(desk) if run.parent == "far"]
    assert sorted(run.id for run in runs) == sorted(str(trial.run_id) for trial in trials)
    assert {run.status for run in runs} == {"succeeded"}
    assert len({name.rpartition("/")[0] for name in uploaded}) == 2, "a program and a dataset"
    assert uploads(bucket) == uploaded, "later trials upload nothing of them"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
    shown = open_study(find_workspace(bucket.uri), "far")
    assert not shown.is_running
    assert shown.trials == trials

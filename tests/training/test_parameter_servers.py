"""Jobs with parameter servers, and what happens when a task of one is lost.

Each row counts itself in a metric, so the logs of an epoch say whether any was lost or twice.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import SCRIPTS, BareEngine, log_of, results
from timonel.engines import JobState
from timonel.models.exports import verify_export
from timonel.storage import Workspace
from timonel.training import Run, train

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROWS = 320
STEPS = ROWS // 8


def test_a_killed_worker_costs_nothing_and_comes_back(
    jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path
) -> None:
    run = _train(
        jobs_workspace,
        engine,
        tmp_path,
        flavour="keras",
        disturb=_sender(engine, "worker-0", signal.SIGKILL),
        epochs=6,
        workers=2,
        ps=2,
        max_staleness=4,
    )
    _assert_each_row_counted_once(run, epochs=6)
    status = run.job.status()
    assert (status.state, status.restarts) == (JobState.SUCCEEDED, 0)
    assert {task.attempt for task in status.tasks if task.role == "worker"} == {1, 2}
    found = results(run)["chief-0"]
    assert found["devices"] == [f"/job:ps/replica:0/task:{n}/device:CPU:0" for n in (0, 1)]
    assert {"staleness_mean", "staleness_max", "dropped_gradients"} <= set(run.record.series)
    assert "asynchronous: each of 2 workers takes a whole batch" in log_of(run)
    export = verify_export(jobs_workspace.jobs / run.id / "export")
    assert export.preparation.input_kind == "tensor"


def test_a_stopped_worker_holds_nobody_up_with_a_backup_worker(
    jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path
) -> None:
    run = _train(
        jobs_workspace,
        engine,
        tmp_path,
        flavour="tf_keras",
        disturb=_sender(engine, "worker-1", signal.SIGSTOP),
        epochs=4,
        workers=3,
        ps=1,
        backup_workers=1,
    )
    _assert_each_row_counted_once(run, epochs=4)
    assert run.job.status().restarts == 0
    assert results(run)["chief-0"]["keras"].startswith("tf_keras")
    assert "divided among 2 of 3 workers" in log_of(run)


@pytest.mark.parametrize("flavour", ["keras", pytest.param("tf_keras", marks=pytest.mark.soak)])
def test_divided_among_workers_it_trains_as_one_process_does(
    flavour: str,
    jobs_workspace: Workspace,
    engine: BareEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = _script(tmp_path, "equal.py", flavour)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))
    alone = json.loads((tmp_path / "timonel-job" / "chief-0.json").read_text())
    run = train(script, workspace=jobs_workspace, engine=engine, ps=2, workers=2, backup_workers=0)
    found = results(run)["chief-0"]
    assert found["calls"] == alone["calls"]
    assert set(found["history"]) == set(alone["history"])
    for name, values in alone["history"].items():
        assert np.allclose(found["history"][name], values, atol=1e-5), name
    for name in ("evaluated", "predicted"):
        assert np.allclose(found[name], alone[name], atol=1e-5), name
    for ours, theirs in zip(found["weights"], alone["weights"], strict=True):
        assert np.allclose(ours, theirs, atol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
@pytest.mark.parametrize("task", ["ps-0", "chief-0"])
def test_a_killed_server_or_chief_restarts_from_the_checkpoint(
    flavour: str, task: str, jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path
) -> None:
    run = _train(
        jobs_workspace,
        engine,
        tmp_path,
        flavour=flavour,
        disturb=_sender(engine, task, signal.SIGKILL),
        epochs=5,
        workers=2,
        ps=2,
        checkpoint_steps=15,
    )
    _assert_each_row_counted_once(run, epochs=5)
    assert run.job.status().restarts == 1
    assert "goes on at epoch" in log_of(run)


def _train(
    workspace: Workspace,
    engine: BareEngine,
    tmp_path: Path,
    *,
    flavour: str,
    disturb: Any,
    epochs: int,
    **options: Any,
) -> Run:
    return train(
        _script(tmp_path, "served.py", flavour),
        args=["--epochs", str(epochs), "--rows", str(ROWS)],
        workspace=workspace,
        engine=engine,
        strategy="parameter-server",
        progress=disturb,
        seed=7,
        **options,
    )


def _script(folder: Path, name: str, flavour: str) -> Path:
    path = folder / name
    text = (SCRIPTS / name).read_text()
    path.write_text(text.replace("import keras\n", f"import {flavour} as keras\n"))
    return path


def _assert_each_row_counted_once(run: Run, *, epochs: int) -> None:
    found = results(run)["chief-0"]
    assert found["epochs"] == list(range(epochs))
    assert found["history"]["count"] == [ROWS] * epochs
    assert found["history"]["numbers"] == [ROWS * (ROWS - 1) / 2] * epochs
    assert found["history"]["val_count"] == [64] * epochs
    assert found["iterations"] == STEPS * epochs
    assert np.mean(found["history"]["loss"][-1]) < found["history"]["loss"][0]
    assert [point.value for point in run.record.series["count"]] == [ROWS] * epochs


def _sender(engine: BareEngine, task_id: str, number: signal.Signals) -> Any:
    """Return a callback that sends a signal to a task once, after the first epoch."""
    sent = threading.Event()

    def send(event: Any) -> None:
        if event["type"] == "metrics" and not sent.is_set():
            sent.set()
            tasks = engine.jobs()[0].tasks
            pid = next(task.pid for task in tasks if task.task_id == task_id and task.pid)
            os.kill(pid, number)

    return send

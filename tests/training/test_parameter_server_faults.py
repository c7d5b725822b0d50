"""Jobs with parameter servers whose tasks are killed, stopped and held up: nothing may tell.

Each row counts itself in a metric, so the logs of an epoch say whether any was lost or twice, and
the optimizer's counter says whether an update was.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import SCRIPTS, BareEngine, log_of, results
from tests.training.disturbed import SEED
from tests.waiting import until
from timonel.engines import JobState
from timonel.models.exports import verify_export
from timonel.storage import Workspace
from timonel.training import Run, train

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

ROWS = 320
STEPS = ROWS // 8
ASYNC: dict[str, Any] = {}
BOUNDED: dict[str, Any] = {"max_staleness": 2}
SYNC: dict[str, Any] = {"backup_workers": 0}
BACKED: dict[str, Any] = {"workers": 3, "backup_workers": 1}


@dataclass
class Served:
    """A job that trains with parameter servers, and what is done to it."""

    run: Run
    epochs: int

    def strike(
        self, task_id: str, number: signal.Signals, moment: str, chance: random.Random
    ) -> None:
        """Send a signal to a task at a moment of its own; what is told then is in the output.

        Args:
            task_id: The task.
            number: The signal.
            moment: ``step``, ``validation``, ``epoch`` or ``checkpoint``: while one is written.
            chance: Picks how many of them are let pass, and how long after it is done.
        """
        until(lambda: self.pid(task_id))
        before = self.count(moment)
        most = {"step": STEPS, "validation": 2, "epoch": 1, "checkpoint": 2}[moment]
        wanted = before + chance.randint(1, most)
        until(lambda: self.count(moment) >= wanted or self.state.is_final, poll_s=0.002)
        time.sleep(0.0 if moment == "checkpoint" else chance.uniform(0.0, 0.05))
        print(f"{number.name} to {task_id} at {moment} {wanted}, epoch {self.count('epoch')}")
        self.kill(task_id, number)

    def kill(self, task_id: str, number: signal.Signals) -> None:
        """Send a signal to a task that runs."""
        pid = self.pid(task_id)
        assert pid is not None
        os.kill(pid, number)

    def await_restart(self, before: int) -> None:
        """Wait until the job was started again."""
        until(lambda: self.run.job.status().restarts > before or self.state.is_final)

    def count(self, moment: str) -> int:
        """Return how often the job has come to a moment."""
        job_dir = self.run.workspace.jobs / self.run.id
        if moment == "checkpoint":
            # What is being written at this moment lies beside what was published.
            return len(list(job_dir.glob("checkpoints/*/.tmp-*"))) + self._published()
        with contextlib.suppress(OSError):
            return (job_dir / "chief-0.told").read_text().split().count(moment)
        return 0

    def _published(self) -> int:
        return sum(event["type"] == "checkpoint" for event in self.run.record.events())

    def pid(self, task_id: str) -> int | None:
        """Return the process of a task that runs."""
        tasks = self.run.job.status().tasks
        return next((t.pid for t in tasks if t.task_id == task_id and t.state == "running"), None)

    def attempt(self, task_id: str) -> int:
        """Return which start of a task this is."""
        tasks = self.run.job.status().tasks
        return next((task.attempt for task in tasks if task.task_id == task_id), 0)

    @property
    def state(self) -> JobState:
        return self.run.job.status().state

    def assert_each_row_counted_once(self) -> None:
        """Check what the script has seen; the job has succeeded."""
        found = results(self.run)["chief-0"]
        assert found["epochs"] == list(range(self.epochs))
        assert found["history"]["count"] == [ROWS] * self.epochs
        assert found["history"]["numbers"] == [ROWS * (ROWS - 1) / 2] * self.epochs
        assert found["history"]["val_count"] == [64] * self.epochs
        assert found["iterations"] == STEPS * self.epochs
        assert np.mean(found["history"]["loss"][-1]) < found["history"]["loss"][0]
        assert [point.value for point in self.run.record.series["count"]] == [ROWS] * self.epochs


class Starter:
    """Starts jobs in one workspace."""

    def __init__(self, workspace: Workspace, engine: BareEngine, folder: Path) -> None:
        self._workspace = workspace
        self._engine = engine
        self._folder = folder

    def __call__(
        self,
        flavour: str,
        epochs: int,
        *args: str,
        pause: float = 0.02,
        **options: Any,
    ) -> Served:
        script = self._folder / "served.py"
        text = (SCRIPTS / "served.py").read_text()
        script.write_text(text.replace("import keras\n", f"import {flavour} as keras\n"))
        run = train(
            script,
            args=["--epochs", str(epochs), "--rows", str(ROWS), "--pause", str(pause), *args],
            workspace=self._workspace,
            on=self._engine,
            strategy="parameter-server",
            detach=True,
            **{"seed": 7, "workers": 2, "ps": 2, **options},
        )
        return Served(run, epochs)


@pytest.fixture
def start(jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path) -> Starter:
    return Starter(jobs_workspace, engine, tmp_path)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """What jobs that nobody disturbed have come to, by how they train."""
    return {}


def _chance(*named: object) -> random.Random:
    print(f"TIMONEL_SOAK_SEED={SEED}")
    return random.Random(f"{SEED} {named}")


def test_a_killed_worker_costs_nothing_and_comes_back(start: Starter) -> None:
    job = start("keras", 6, pause=0.01, max_staleness=4)
    until(lambda: job.count("epoch"))
    job.kill("worker-0", signal.SIGKILL)
    job.run.wait()
    job.assert_each_row_counted_once()
    status = job.run.job.status()
    assert (status.state, status.restarts) == (JobState.SUCCEEDED, 0)
    assert {task.attempt for task in status.tasks if task.role == "worker"} == {1, 2}
    found = results(job.run)["chief-0"]
    assert found["devices"] == [f"/job:ps/replica:0/task:{n}/device:CPU:0" for n in (0, 1)]
    series = job.run.record.series
    assert {"staleness_mean", "staleness_max", "dropped_gradients"} <= set(series)
    assert "asynchronous: each of 2 workers takes a whole batch" in log_of(job.run)
    export = verify_export(job.run.workspace.jobs / job.run.id / "export")
    assert export.preparation.input_kind == "tensor"


@pytest.mark.soak
def test_a_worker_is_killed_however_often(start: Starter) -> None:
    chance = _chance("however often")
    job = start("keras", 4, "--last-after", "kills", max_restarts=1)
    for attempt in range(1, 6):
        until(lambda attempt=attempt: job.pid("worker-0") and job.attempt("worker-0") == attempt)
        time.sleep(chance.uniform(0.0, 0.5))
        job.kill("worker-0", signal.SIGKILL)
    until(lambda: job.attempt("worker-0") == 6)
    (job.run.workspace.jobs / job.run.id / "kills").touch()
    job.run.wait()
    job.assert_each_row_counted_once()
    assert job.run.job.status().restarts == 0


@pytest.mark.soak
def test_a_stopped_worker_holds_nobody_up_with_a_backup_worker(start: Starter) -> None:
    job = start("tf_keras", 4, pause=0.01, ps=1, **BACKED)
    until(lambda: job.count("epoch"))
    job.kill("worker-1", signal.SIGSTOP)
    job.run.wait()
    job.assert_each_row_counted_once()
    assert job.run.job.status().restarts == 0
    assert results(job.run)["chief-0"]["keras"].startswith("tf_keras")
    assert "divided among 2 of 3 workers" in log_of(job.run)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("flavour", "options"),
    [("keras", ASYNC), ("tf_keras", BOUNDED), ("tf_keras", SYNC), ("keras", BACKED)],
    ids=["asynchronous", "bounded", "synchronous", "backed"],
)
@pytest.mark.parametrize("targets", ["helpers", "keepers"])
def test_kills_at_random_moments(
    targets: str,
    flavour: str,
    options: dict[str, Any],
    start: Starter,
    undisturbed: dict[str, Any],
) -> None:
    chance = _chance(targets, flavour, options)
    key = f"{flavour} {options}"
    if key not in undisturbed:
        calm = start(flavour, 8, **options)
        calm.run.wait()
        undisturbed[key] = results(calm.run)["chief-0"]
    job = start(flavour, 8, evaluator=True, max_restarts=9, checkpoint_steps=15, **options)
    moments = ["step", "validation", "epoch", "checkpoint"]
    if targets == "helpers":
        for task_id in ("worker-0", "evaluator-0", "worker-1"):
            job.strike(task_id, signal.SIGKILL, chance.choice(moments), chance)
    else:
        tasks = ["ps-0", "chief-0", "ps-1"]
        chance.shuffle(tasks)
        for number, task_id in enumerate(tasks):
            job.strike(task_id, signal.SIGKILL, chance.choice(moments), chance)
            job.await_restart(number)
    job.run.wait()
    job.assert_each_row_counted_once()
    assert job.run.job.status().restarts == (0 if targets == "helpers" else 3)
    found, usual = results(job.run)["chief-0"], undisturbed[key]
    best, usual_best = min(found["history"]["loss"]), min(usual["history"]["loss"])
    print(f"loss {best:.3f}, undisturbed {usual_best:.3f}")
    assert best < usual_best + 0.2  # chance is 0.69; stale gradients make it uneven
    if options is SYNC:
        assert found["history"]["loss"] == pytest.approx(usual["history"]["loss"], abs=1e-4)
        assert found["evaluated"] == pytest.approx(usual["evaluated"], abs=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("task_id", "options"),
    [("worker-1", ASYNC), ("worker-1", SYNC), ("ps-1", ASYNC), ("ps-0", SYNC), ("chief-0", ASYNC)],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "asynchronous",
)
def test_a_task_that_is_held_up_is_replaced(
    task_id: str, options: dict[str, Any], start: Starter
) -> None:
    job = start("keras", 6, checkpoint_steps=15, **options)
    until(lambda: job.count("epoch"))
    job.strike(task_id, signal.SIGSTOP, "step", _chance(task_id, options))
    job.run.wait()
    job.assert_each_row_counted_once()
    # TensorFlow may wait for a worker with Python's lock held: the chief seems to hang then too.
    least = int(not task_id.startswith("worker"))
    assert least <= job.run.job.status().restarts <= 1


@pytest.mark.soak
@pytest.mark.parametrize("task_id", ["chief-0", "worker-0", "ps-0"])
@pytest.mark.parametrize(("flavour", "options"), [("tf_keras", ASYNC), ("keras", SYNC)])
def test_a_machine_that_is_taken_away(
    task_id: str, flavour: str, options: dict[str, Any], start: Starter
) -> None:
    job = start(flavour, 6, **options)
    job.strike(task_id, signal.SIGTERM, "step", _chance(task_id, flavour))
    job.run.wait()
    job.assert_each_row_counted_once()
    assert job.run.job.status().restarts == int(task_id != "worker-0")
    if task_id == "chief-0":
        # It has saved where it was, so no step was made twice.
        assert job.count("step") == STEPS * job.epochs


@pytest.mark.soak
@pytest.mark.parametrize(("flavour", "options"), [("keras", ASYNC), ("tf_keras", SYNC)])
def test_it_is_stopped_and_goes_on(flavour: str, options: dict[str, Any], start: Starter) -> None:
    job = start(flavour, 5, **options)
    until(lambda: job.count("step") > 1.5 * STEPS)
    asked = time.monotonic()
    job.run.job.stop()
    assert job.run.job.wait(60).state is JobState.STOPPED
    assert time.monotonic() - asked < 20
    done = job.count("step")
    assert done < job.epochs * STEPS
    job.run.resume()
    job.run.wait()
    job.assert_each_row_counted_once()
    assert job.count("step") == STEPS * job.epochs  # not one was made again
    assert "resumes at epoch" in log_of(job.run)

"""Jobs that are killed within their epochs: the same steps, History and weights as an unbroken one.

The default tests take a sample that the commit decides: two workers, two blows, one of the Kerases.
The soak has ten blows for each Keras and number of workers. ``TIMONEL_SOAK_SEED`` picks others.
"""

from __future__ import annotations

import os
import random
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import _measure

from tests.buckets import open_bucket
from tests.training.conftest import SCRIPTS, BareEngine, log_of, results
from tests.training.disturbed import DisturbedJob
from timonel.data import Dataset
from timonel.engines import FailureCause
from timonel.errors import UserCodeError
from timonel.storage import Workspace
from timonel.training import Run, train

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SEED = os.environ.get("TIMONEL_SOAK_SEED") or str(zlib.crc32(_measure.commit().encode()))
KERASES = ("keras", "tf_keras")
BLOWS = 10
LEGACY = "TF_USE_LEGACY_KERAS"


class Resumed:
    """Jobs of one script that are compared with an unbroken one."""

    def __init__(self, dataset: Dataset, workspace: Workspace, engine: BareEngine) -> None:
        self._dataset = dataset
        self._workspace = workspace
        self._engine = engine

    def start(self, workers: int, *args: str, **options: Any) -> Run:
        return train(
            SCRIPTS / "resume.py",
            data=self._dataset.uri,
            args=list(args),
            workers=workers,
            workspace=self._workspace,
            on=self._engine,
            seed=5,
            detach=True,
            checkpoint_steps=2,
            max_restarts=BLOWS + 2,
            **options,
        )

    def compare(self, workers: int, blows: list[tuple[str, signal.Signals]], *args: str) -> Run:
        """Run a job that gets these blows, and compare it with one that gets none."""
        unbroken = self.start(workers, *args)
        unbroken.wait()
        chance = random.Random(f"{SEED} {workers} {args} {len(blows)}")
        job = DisturbedJob(self.start(workers, *args), epochs=4)
        for target, number in blows:
            job.strike(target, number, "step", chance)
        told = job.finish()
        print(f"TIMONEL_SOAK_SEED={SEED}", *told, sep="\n")
        landed = [each for each in told if each.landed]
        assert landed
        assert job.run.record.restarts == len(landed)
        expected, found = results(unbroken), results(job.run)
        assert set(found) == set(expected)
        for task_id in expected:
            _assert_same(found[task_id], expected[task_id])
        return job.run


@pytest.fixture
def resumed(dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine) -> Resumed:
    return Resumed(dataset, jobs_workspace, engine)


def test_a_sample(resumed: Resumed, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(SEED)
    if chance.choice(KERASES) == "tf_keras":
        monkeypatch.setenv(LEGACY, "1")
    blows = [("worker-0", signal.SIGKILL), ("chief-0", signal.SIGTERM)]
    chance.shuffle(blows)
    run = resumed.compare(2, blows, "--epochs", "4")
    assert "resumes at epoch" in log_of(run)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("flavour", KERASES)
def test_ten_blows(
    flavour: str, workers: int, resumed: Resumed, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flavour == "tf_keras":
        monkeypatch.setenv(LEGACY, "1")
    chance = random.Random(f"{SEED} {flavour} {workers}")
    targets = ["chief-0", "worker-0"][:workers]
    blows = [
        (chance.choice(targets), chance.choice([signal.SIGKILL, signal.SIGTERM]))
        for _ in range(BLOWS)
    ]
    resumed.compare(workers, blows, "--epochs", "12", "--sleep", "0.1")


@pytest.fixture(params=["folder", "s3"])
def copies(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where checkpoints are copied to; the bucket is one at loopback."""
    if request.param == "folder":
        yield (tmp_path / "copies").as_uri()
        return
    yield from open_bucket("s3", request, monkeypatch)


@pytest.mark.soak
def test_another_machine_goes_on_from_the_copies(resumed: Resumed, copies: str) -> None:
    unbroken = resumed.start(1, "--epochs", "4")
    first = resumed.start(1, "--epochs", "4", "--sleep", "0.3", checkpoint_uri=copies)
    job = DisturbedJob(first, epochs=4)
    job.until(lambda: job.checkpoints(1) >= 3)
    first.job.stop()
    # Its folder is another's, and empty.
    second = resumed.start(1, "--epochs", "4", checkpoint_uri=copies)
    second.wait()
    unbroken.wait()
    assert f"checkpoints from {copies}" in log_of(second)
    assert "fit 0 resumes at epoch" in log_of(second)
    _assert_same(results(second)["chief-0"], results(unbroken)["chief-0"])


@pytest.mark.soak
def test_a_loss_that_is_no_number(resumed: Resumed) -> None:
    run = resumed.start(2, "--nan-at", "9", stop_on_nan=True)
    with pytest.raises(UserCodeError, match=r"NaN or infinite at epoch 2, step \d"):
        run.wait()
    status = run.job.status()
    assert (status.cause, status.restarts) == (FailureCause.USER_ERROR, 0)


def _assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["epochs"] == expected["epochs"]
    assert found["steps"] == expected["steps"]
    assert found["history"] == expected["history"]
    for ours, theirs in zip(found["values"], expected["values"], strict=True):
        assert np.abs(np.array(ours) - np.array(theirs)).max() <= 1e-5
    assert found["weights"] == expected["weights"]

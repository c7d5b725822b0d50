"""Jobs of two workers that are killed, hung and cut off at random moments: none may tell.

Every job is compared with one that nobody disturbed: the same History, the same weights to the
last bit. ``TIMONEL_SOAK_SEED`` picks the moments; without it they follow from the commit.
"""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass
from typing import Any

import pytest

from tests.contracts.engines import eventually
from tests.training.conftest import SCRIPTS, BareEngine, log_of, results
from tests.training.disturbed import SEED, Disturbance, DisturbedJob, Moment, left_behind
from timonel.data import Dataset
from timonel.engines import FailureCause
from timonel.models.exports import reference_of, verify_export
from timonel.storage import Workspace
from timonel.training import Run, train

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

EPOCHS = 8
MORE_EPOCHS = 5
STEPS = 6


@pytest.fixture(scope="module")
def undisturbed(dataset: Dataset, jobs_workspace: Workspace) -> dict[str, Any]:
    """What both workers of a job of two fits have found whom nobody disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIMONEL_WARM_LINGER", "30")
        run = _train(dataset, jobs_workspace, BareEngine(jobs_workspace.jobs), MORE_EPOCHS)
        run.wait()
    found = results(run)
    assert found["chief-0"] == found["worker-0"]
    return dict(found["chief-0"])


@dataclass(frozen=True)
class Soak:
    """Jobs that are disturbed, and what comes of it."""

    dataset: Dataset
    workspace: Workspace
    engine: BareEngine
    undisturbed: dict[str, Any]

    def start(self, more_epochs: int = 0, *args: str) -> DisturbedJob:
        """Start a job of one fit, or of two."""
        run = _train(self.dataset, self.workspace, self.engine, more_epochs, *args)
        return DisturbedJob(run, EPOCHS + more_epochs)

    def finish(self, name: str, job: DisturbedJob, *, fits: int = 1) -> list[Disturbance]:
        """Wait for its end, and check that nobody can tell that it was disturbed."""
        told = job.finish(name)
        assert job.status().restarts == sum(each.landed for each in told)
        # What comes in the job's last half second, after all epochs, may come too late.
        early = [each for each in told if each.moment != "end" and each.epochs < job.epochs]
        assert all(each.landed for each in early)
        _assert_undisturbed(job.run, self.undisturbed, fits)
        return told


@pytest.fixture
def soak(
    dataset: Dataset,
    jobs_workspace: Workspace,
    engine: BareEngine,
    undisturbed: dict[str, Any],
) -> Soak:
    return Soak(dataset, jobs_workspace, engine, undisturbed)


@pytest.mark.parametrize(
    "moments",
    [("start", "step", "end"), ("step", "checkpoint", "step"), ("start", "start", "start")],
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("target", ["chief-0", "worker-0"])
def test_kills_at_random_moments(
    target: str, number: signal.Signals, moments: tuple[Moment, ...], soak: Soak
) -> None:
    chance = _chance(target, number, *moments)
    job = soak.start()
    for moment in moments:
        job.strike(target, number, moment, chance)
    told = soak.finish("one fit", job)
    wanted = FailureCause.CRASHED if number is signal.SIGKILL else FailureCause.PREEMPTED
    assert {each.cause for each in told if each.landed} == {wanted}


@pytest.mark.parametrize("target", ["chief-0", "worker-0"])
def test_a_task_that_hangs_is_found(target: str, soak: Soak) -> None:
    job = soak.start()
    job.strike(target, signal.SIGSTOP, "step", _chance("hangs", target))
    told = soak.finish("one fit", job)[0]
    # Whoever is first: the engine, whom it gives no sign of life any more, or its peer.
    assert told.cause in {FailureCause.HUNG, FailureCause.LOST_PEER}
    assert told.noticed_s is not None
    assert told.noticed_s < 10


@pytest.mark.parametrize("target", ["chief-0", "worker-0"])
def test_a_fit_that_was_finished_is_given_back(target: str, soak: Soak) -> None:
    job = soak.start(MORE_EPOCHS)
    # An epoch is recorded before it is saved; once the next one is, it was.
    job.until(lambda: job.recorded_epochs() > EPOCHS + 1)
    job.strike(target, signal.SIGKILL, "step", _chance("second fit", target))
    told = soak.finish("the second of two fits", job, fits=2)[0]
    assert told.epochs > EPOCHS
    again = [event for event in job.run.record.events() if event["t"] > told.at]
    assert {event["fit"] for event in again if event["type"] == "progress"} == {1}
    assert all(event["epoch"] >= EPOCHS for event in again if event["type"] == "metrics")
    assert "fit 0 finished before the restart" in log_of(job.run)
    assert "fit 1 resumes at epoch" in log_of(job.run)


@pytest.mark.parametrize("target", ["chief-0", "worker-0"])
def test_what_the_script_exports_itself(target: str, soak: Soak) -> None:
    job = soak.start(0, "--export")
    job.strike(target, signal.SIGKILL, "end", _chance("export", target))
    soak.finish("one fit, exported by the script", job)
    folder = job.run.workspace.jobs / job.run.id / "export"
    export = verify_export(folder)
    assert export.labels == ("dark-left", "dark-right")
    # The script's own model ends with a factor of 100 behind the softmax.
    for example in reference_of(folder, export):
        assert sum(example.scores) == pytest.approx(100.0, rel=1e-4)
    # The version is checked on raw files, in a process that loads what was exported.
    version = job.run.export(f"soak-{target}")
    assert version.number == 1


@pytest.mark.parametrize("target", ["agent of chief-0", "agent of worker-0"])
def test_a_killed_agent_is_replaced_and_training_goes_on(target: str, soak: Soak) -> None:
    job = soak.start()
    job.strike(target, signal.SIGKILL, "step", _chance(target))
    assert soak.finish("one fit", job)[0].cause == FailureCause.PREEMPTED


def test_a_killed_supervisor_is_replaced_and_training_goes_on(soak: Soak) -> None:
    job = soak.start()
    job.strike("supervisor", signal.SIGKILL, "step", _chance("supervisor"))
    assert soak.finish("one fit", job)[0].cause == FailureCause.ENGINE
    restarts = [event for event in job.run.record.events() if event["type"] == "restart"]
    assert restarts[0]["message"] == "its supervisor was killed (signal 9)"


def _train(
    dataset: Dataset, workspace: Workspace, engine: BareEngine, more_epochs: int, *args: str
) -> Run:
    return train(
        SCRIPTS / "soak.py",
        data=dataset.uri,
        args=["--epochs", str(EPOCHS), "--more-epochs", str(more_epochs), *args],
        workers=2,
        workspace=workspace,
        on=engine,
        seed=5,
        detach=True,
    )


def _chance(*named: object) -> random.Random:
    print(f"TIMONEL_SOAK_SEED={SEED}")
    return random.Random(f"{SEED} {named}")


def _assert_undisturbed(run: Run, undisturbed: dict[str, Any], fits: int) -> None:
    found = results(run)
    assert found["chief-0"] == found["worker-0"]
    assert found["chief-0"]["fits"] == undisturbed["fits"][:fits]
    points = run.record.series["val_loss"]
    values = [value for fit in undisturbed["fits"][:fits] for value in fit["history"]["val_loss"]]
    assert [point.epoch for point in points] == list(range(len(values)))
    assert [point.step for point in points] == [STEPS * (n + 1) for n in range(len(values))]
    assert [point.value for point in points] == pytest.approx(values)
    assert run.record.status == "succeeded"
    assert verify_export(run.workspace.jobs / run.id / "export").model.parameters > 0
    _assert_nothing_left(run)


def _assert_nothing_left(run: Run) -> None:
    eventually(lambda: not left_behind(run), explain=lambda: str(left_behind(run)))

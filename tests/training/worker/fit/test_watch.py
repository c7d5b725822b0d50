"""What is left of an epoch when a task is killed at its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from timonel.storage import Workspace
from timonel.tracking import RunWriter, read_run, start_run
from timonel.training.worker.context import context
from timonel.training.worker.fit.checkpoints import Checkpoints, FitState, Progress
from timonel.training.worker.fit.managed_fit import Fits
from timonel.training.worker.fit.services import Services
from timonel.training.worker.fit.watch import FitCall, FitWatch

STEPS = 6


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def run(workspace: Workspace) -> RunWriter:
    return start_run(workspace, "train", run_id="train-1")


class NoModel:
    """Stands for a model without variables."""

    def take(self, progress: Progress, trained: int) -> FitState:
        return FitState(progress, extra={"trained": trained})

    def note_trained_variables(self, number: int) -> None: ...
    def restore(self, state: FitState) -> None: ...
    def restore_metrics(self, state: FitState) -> None: ...
    def restore_callbacks(self, state: FitState) -> None: ...
    def hold_metrics(self) -> None: ...
    def release_metrics(self) -> None: ...


def generation(
    run: RunWriter, tmp_path: Path, checkpoints: Checkpoints, before: Progress
) -> FitWatch:
    """Return what follows the first fit of one generation."""
    services = Services(None, context().cluster, checkpoints, tmp_path / "tb", run=run)
    model = SimpleNamespace(history=SimpleNamespace(epoch=[], history={}))
    call = FitCall(0, model, {"epochs": 4, "batch_size": 8}, before)
    reporter = Fits(services).reporter(call, 8)
    assert reporter is not None
    return FitWatch(services, call, NoModel(), reporter=reporter)


def end_epoch(watch: FitWatch, epoch: int, **options: Any) -> None:
    watch.epoch_begins(epoch)
    watch.batch_ends(STEPS, {"loss": 1.0})
    watch.epoch_ends(epoch, {"loss": 1.0 / (epoch + 1)}, **options)


@pytest.mark.process
@pytest.mark.parametrize("is_last", [False, True])
def test_an_epoch_that_was_lost_is_recorded_once(
    is_last: bool,
    run: RunWriter,
    workspace: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoints = Checkpoints(tmp_path / "fits", writes=True, progress=tmp_path / "progress")
    watch = generation(run, tmp_path, checkpoints, Progress())
    end_epoch(watch, 0, is_last=False)

    def killed(*_arguments: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", killed)
        with pytest.raises(KilledError):  # noqa: PT012 - the last epoch is saved by another call
            end_epoch(watch, 1, is_last=is_last)
            watch.finish()
    # Its metrics are there whenever its checkpoint might be.
    assert [point.epoch for point in read_run(workspace, "train-1").series["loss"]] == [0, 1]

    checkpoints.wait()
    saved = checkpoints.latest(0)
    assert saved is not None
    watch = generation(run, tmp_path, checkpoints, saved.progress)
    for epoch in (1, 2):
        end_epoch(watch, epoch, is_last=False)
    points = read_run(workspace, "train-1").series["loss"]
    assert [(point.epoch, point.step) for point in points] == [(0, 6), (1, 12), (2, 18)]

"""Which checkpoints are evaluated, and what follows, without TensorFlow."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from timonel.errors import CorruptError, SpecError
from timonel.training.evaluations import CheckpointEvaluation, EvaluationRecords
from timonel.training.option_values import parse_best, parse_early_stopping
from timonel.training.settings import CheckpointPolicy
from timonel.training.worker.evaluation.follower import EvaluationPolicy, Follower, passed_over
from timonel.training.worker.fit.checkpoints import Checkpoint, Checkpoints, FitState, Progress


class Job:
    """A job whose trainers do the next thing whenever the evaluator waits."""

    def __init__(self, folder: Path, keep: int = 2, keep_best: str | None = None) -> None:
        self.records = EvaluationRecords(folder)
        policy = CheckpointPolicy(keep_checkpoints=keep, keep_best=keep_best)
        self.checkpoints = Checkpoints(
            folder / "checkpoints",
            writes=True,
            progress=folder / "progress",
            policy=policy,
            records=self.records,
        )
        self.folder = folder / "checkpoints" / "fit-000"
        self.saved: list[str] = []
        self.told: list[tuple[int, str]] = []
        self.stops: list[int] = []
        self.next: list[Callable[[], Any]] = []
        self.progress = Progress()

    def epoch(self, *, last: bool = False) -> None:
        """End an epoch of ten steps."""
        number = self.progress.next_epoch
        self.progress = self.progress.after(number, {"loss": 1.0}, steps=10 * (number + 1))
        self.save(self.progress.as_finished() if last else self.progress)

    def step(self, step: int) -> None:
        """Save within the next epoch."""
        self.save(self.progress.within(step))

    def save(self, progress: Progress) -> None:
        def published(path: Path, _: Progress) -> None:
            self.saved.append(path.name)

        weight = np.full(1, float(progress.steps))
        self.checkpoints.save(0, FitState(progress, [weight]), published)
        self.checkpoints.wait()

    def follower(self, **wanted: Any) -> Follower:
        def sleep(_: float) -> None:
            assert self.next, "waits for ever"
            self.next.pop(0)()

        return Follower(
            self.checkpoints,
            self.records,
            EvaluationPolicy(ask_to_stop=self.stops.append, **wanted),
            tell=self.tell,
            saved=lambda _: self.saved,
            sleep=sleep,
        )

    def tell(self, fit: int, done: CheckpointEvaluation) -> None:
        if (fit, done.checkpoint) not in self.told:
            self.told.append((fit, done.checkpoint))

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.told]

    @property
    def there(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def losses(*values: float) -> Callable[[Checkpoint], dict[str, float]]:
    """Return an evaluation that finds these losses, one after the other."""
    left = list(values)
    return lambda _: {"val_loss": left.pop(0)}


def test_each_checkpoint_is_evaluated_as_it_comes_and_the_last_one_given_back(job: Job) -> None:
    job.next = [job.epoch, lambda: job.step(5), job.epoch, lambda: job.epoch(last=True)]
    final = job.follower().follow(0, losses(3.0, 2.5, 2.0, 1.0))
    assert final is not None
    assert final.state.variables[0] == [30.0]
    assert job.names == ["epoch-0001", "epoch-0001-step-0000005", "epoch-0002", "final"]
    assert (job.checkpoints.root.parent / "progress").read_text().split() == ["30", "resting"]
    record = job.records.read(0)
    assert [(one.epoch, one.step, one.is_epochs_end) for one in record.done] == [
        (0, 10, True),
        (1, 15, False),
        (1, 20, True),
        (2, 30, True),
    ]
    assert record.skipped == 0


def test_of_several_the_newest_is_evaluated_and_the_others_are_counted(job: Job) -> None:
    def three(_: Checkpoint) -> dict[str, float]:
        if len(job.saved) == 1:
            job.epoch()
            job.step(5)
            job.epoch(last=True)
        return {"val_loss": 1.0}

    job.next = [job.epoch]
    assert job.follower().follow(0, three) is not None
    assert job.names == ["epoch-0001", "final"]
    assert job.records.read(0).skipped == 2


def test_passed_over() -> None:
    saved = ["epoch-0001", "epoch-0001-step-0000005", "epoch-0002", "epoch-0003"]
    assert passed_over(saved, ["epoch-0002"]) == {"epoch-0001", "epoch-0001-step-0000005"}
    assert passed_over(saved, []) == set()


def test_what_is_evaluated_and_what_is_best_are_kept(tmp_path: Path) -> None:
    job = Job(tmp_path, keep=1, keep_best="val_loss")
    values = {10: 3.0, 20: 1.0, 30: 2.0, 50: 2.0, 60: 4.0}

    def evaluate(found: Checkpoint) -> dict[str, float]:
        if found.progress.steps == 30:
            job.epoch()
            job.epoch()
            assert found.folder.is_dir(), "removed while it was evaluated"
        return {"val_loss": values[found.progress.steps]}

    job.next = [job.epoch, job.epoch, job.epoch, lambda: job.epoch(last=True)]
    job.follower(best=parse_best("val_loss")).follow(0, evaluate)
    assert job.records.read(0).best == "epoch-0002"
    assert job.there == {"epoch-0002", "final"}
    assert job.checkpoints.best_folder(0) == job.folder / "epoch-0002"
    assert job.records.read(0).skipped == 1


def test_training_is_asked_to_end_until_it_does(job: Job) -> None:
    job.next = [*[job.epoch] * 4, lambda: job.epoch(last=True)]
    job.follower(stopping=parse_early_stopping("val_loss:2")).follow(
        0, losses(1.0, 2.0, 3.0, 4.0, 5.0)
    )
    assert job.stops == [0, 0]  # after the third and the fourth; the fifth has ended it


@pytest.mark.parametrize("wanted", [{"best": "val_f1"}, {"stopping": "val_f1"}])
def test_a_metric_that_is_not_measured_is_refused(job: Job, wanted: dict[str, str]) -> None:
    parse = parse_best if "best" in wanted else parse_early_stopping
    ((name, text),) = wanted.items()
    job.epoch()
    with pytest.raises(SpecError, match=r"no metric val_f1 for .*: available: val_loss"):
        job.follower(**{name: parse(text)}).follow(0, losses(1.0))


def test_a_process_that_goes_on_evaluates_nothing_twice_and_tells_everything(job: Job) -> None:
    job.epoch()

    def killed(fit: int, done: CheckpointEvaluation) -> None:
        raise KeyboardInterrupt

    first = job.follower()
    first.tell = killed
    with pytest.raises(KeyboardInterrupt):
        first.follow(0, losses(2.0))
    assert job.names == []
    job.next = [lambda: job.epoch(last=True)]
    job.follower().follow(0, losses(1.0))
    assert job.names == ["epoch-0001", "final"]
    # Once more, when all is done: nothing is evaluated, the weights are there.
    assert job.follower().follow(0, losses()) is not None
    assert [one.metrics for one in job.records.read(0).done] == [
        {"val_loss": 2.0},
        {"val_loss": 1.0},
    ]


def test_one_that_was_killed_before_it_asked_asks_when_it_goes_on(job: Job) -> None:
    job.epoch()
    job.next = [job.epoch, lambda: job.epoch(last=True)]
    job.follower().follow(0, losses(1.0, 2.0, 3.0))
    record = job.records.read(0)
    job.records.write(0, record.model_copy(update={"done": record.done[:-1]}))
    job.follower(stopping=parse_early_stopping("val_loss:1")).follow(0, losses(3.0))
    assert job.stops == [0]


def test_without_validation_data_it_waits_for_the_weights(job: Job) -> None:
    job.next = [job.epoch, lambda: job.epoch(last=True)]
    final = job.follower().follow(0, None)
    assert final is not None
    assert final.progress.finished
    assert job.names == []


def test_trainers_that_never_make_the_call_are_not_waited_for(job: Job) -> None:
    job.next = [job.records.mark_trained]
    assert job.follower().follow(0, losses()) is None
    job.next = [job.epoch]
    assert job.follower().follow(0, losses(1.0)) is None
    assert job.names == []


def test_a_damaged_checkpoint_is_left_out_but_for_the_last(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    def damage(name: str) -> None:
        (job.folder / name / "arrays.bin").write_bytes(b"")

    job.epoch()
    damage("epoch-0001")
    job.next = [lambda: None, job.epoch, lambda: (job.epoch(last=True), damage("final"))]
    with pytest.raises(CorruptError):
        job.follower().follow(0, losses(1.0))
    assert job.names == ["epoch-0002"]
    assert sum("Skipping the checkpoint" in message for message in caplog.messages) == 1


def test_one_that_is_removed_before_it_is_read_is_no_error(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.epoch()
    folder, newest = job.folder / "epoch-0001", job.checkpoints.newest_folder

    def vanishing(fit: int) -> Path | None:
        found = newest(fit)
        if found == folder:
            shutil.rmtree(folder)
        return found

    monkeypatch.setattr(job.checkpoints, "newest_folder", vanishing)
    job.next = [lambda: job.epoch(last=True)]
    job.follower().follow(0, losses(1.0))
    assert (job.names, caplog.messages) == (["final"], [])

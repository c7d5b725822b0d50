"""Following one ``fit`` call: what is done between its steps and at the ends of its epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from timonel.training.worker.fit.agreement import Agreement, Wish
from timonel.training.worker.fit.checkpoints import Checkpoint, Checkpoints, FitState, Progress
from timonel.training.worker.fit.nan_check import Losses
from timonel.training.worker.fit.wrapping import recall
from timonel.training.worker.reports.reporting import Reporter
from timonel.training.worker.state.checkpoint_schedule import Due
from timonel.training.worker.state.data_position import Feed
from timonel.training.worker.termination import Terminated


class Snapshots(Protocol):
    """What takes and restores the state of a call: `state.snapshot.Snapshot`, or a loop's own."""

    def take(self, progress: Progress, trained: int) -> FitState:
        """Return the state after ``trained`` steps of the call, copied to host memory."""

    def restore(self, state: FitState) -> None:
        """Give back everything but the metrics of the epoch."""

    def hold_metrics(self) -> None:
        """Keep the metrics of the epoch as they are now: validation uses the same variables."""

    def release_metrics(self) -> None:
        """Keep them no longer: another epoch begins."""

    def restore_metrics(self, state: FitState) -> None:
        """Give back the metrics of an epoch that was broken off."""

    def restore_callbacks(self, state: FitState) -> None:
        """Give back what callbacks remember, and nothing else."""


class Watch:
    """Follows one ``fit`` call: reports it, saves its state, and leaves it when asked to.

    Args:
        checkpoints: Where state is kept.
        number: The number of the call.
        model: What is trained.
        progress: How far earlier calls have come.
        snapshots: Takes and restores state.
        saved: The checkpoint that it goes on from, if any.
        reporter: Tells the run; None where another task does.
        feed: The training data.
        agreement: What all tasks do at the same step.
        agree: Makes the replicas agree on what each has changed by itself.
        part: Lets the tasks leave together, once the state is saved.
        begin_at: Tells Keras how far the first epoch is: steps, steps of the pass over the data,
            and whether all its steps are done.
        losses: Looks for a loss that is no number.
    """

    def __init__(  # noqa: PLR0913 - one call of fit, with all that takes part in it
        self,
        checkpoints: Checkpoints,
        number: int,
        model: Any,
        progress: Progress,
        *,
        snapshots: Snapshots,
        saved: Checkpoint | None = None,
        reporter: Reporter | None = None,
        feed: Feed | None = None,
        agreement: Agreement | None = None,
        agree: Callable[[], None] = lambda: None,
        part: Callable[[], None] = lambda: None,
        begin_at: Callable[[int, int, bool], None] = lambda *_: None,
        losses: Losses | None = None,
    ) -> None:
        self.progress = saved.progress if saved is not None else progress
        self.first_step = self.progress.step
        """The step that the first epoch of this generation begins with."""
        self.trained = int(saved.state.extra.get("trained", 0)) if saved is not None else 0
        """Steps of this call that are done, by all generations."""
        self._saved = saved
        self._begun: FitState | None = None
        self._size: int | None = None
        self._restored = self.progress
        self._checkpoints = checkpoints
        self._number = number
        self._model = model
        self._snapshots = snapshots
        self._reporter = reporter
        self._feed = feed or Feed()
        self._agreement = agreement or Agreement()
        self._agree, self._part = agree, part
        self._begin_at = begin_at
        self._losses = losses or Losses()
        self._due = Due(checkpoints.policy)
        self._step = self.first_step
        self._trained_before_epoch = self.trained - self.first_step
        self._agreed = False
        self._epoch_begun = self._steps_ended = 0.0

    def train_begins(self, params: Mapping[str, Any]) -> None:
        """Take over what Keras found out about the call, and give back what was saved."""
        self._size = params.get("steps")
        if self._reporter is not None:
            self._reporter.expect_steps(self._size)
        self._agreement.begin(self._number)
        if self._saved is not None:
            self._snapshots.restore(self._saved.state)

    def report_beside(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Report what ``source`` returns together with the metrics."""
        if self._reporter is not None:
            self._reporter.beside = source

    def epoch_begins(self, epoch: int) -> None:
        """Note that an epoch begins; in the first one, what was saved is given back."""
        recall(self._model.history, self._restored)
        self._step = 0
        self._trained_before_epoch = self.trained - (self.first_step if self._saved else 0)
        self._snapshots.release_metrics()
        if self._saved is not None:
            saved, self._saved = self._saved, None
            self._resume_epoch(saved.state)
        self._feed.epoch_begins(epoch)
        self._agreement.pace_changes()
        self._epoch_begun = time.monotonic()
        self._agreed = False
        if self._reporter is not None:
            self._reporter.epoch_begins(epoch)

    def step_boundary(self, step: int | None = None) -> None:
        """Do what is due where so many steps of the epoch are done and no other has begun.

        All tasks call this with the same steps; so they save their state at the same ones.

        Args:
            step: Steps of the epoch; None for as many as `batch_ends` was told.

        Raises:
            Terminated: The job is left; the state is saved.
            TimonelError: The loss is no number, and that ends the job.
        """
        before = self._arrive(self._step if step is None else step)
        self._checkpoints.note_steps(self.progress.steps_before_epoch + self._step)
        decided = self._decide()
        if Wish.LEAVE in decided:
            self._leave()
        due = Wish.SAVE in decided or self._due.by_steps(before, self.trained)
        if due and self._feed.can_seek and self.trained > before:
            self._save(self.progress.within(self._step))
        self._feed.step_begins(self.trained)

    def batch_begins(self) -> None:
        """Note that callbacks were told of a step that begins, which those saved knew already."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._snapshots.restore_callbacks(begun)

    def batch_ends(self, step: int, logs: Mapping[str, Any]) -> None:
        """Note that ``step`` steps of the epoch are done, with what Keras says of them."""
        self._step = max(self._step, step)
        self._losses.note(self.progress.next_epoch, step, logs.get("loss"))
        if self._reporter is not None:
            self._reporter.batch(step, logs)

    def validation_begins(self) -> None:
        """Note that the steps of the epoch are done and the model is validated."""
        self._steps_are_done()
        self._agreement.pace_changes()
        self._snapshots.hold_metrics()

    def validation_boundary(self) -> None:
        """Leave the job between two steps of validation, if it is to be left."""
        if self._agreed and Wish.LEAVE in self._decide():
            self._leave(is_done=True)

    def epoch_ends(self, epoch: int, logs: Mapping[str, Any], *, is_last: bool) -> None:
        """Save and report an epoch. The last one is saved by `finish`, once ``fit`` is through."""
        self._steps_are_done()
        steps = self._step
        self.progress = self.progress.after(epoch, logs, self.progress.steps_before_epoch + steps)
        # Reported first: an epoch that is lost between the two is trained and reported again, in
        # the same place. The other way round, its metrics would be missing for good.
        if self._reporter is not None:
            took_s = self._steps_ended - self._epoch_begun
            self._reporter.epoch_ends(epoch, logs, steps=steps, took_s=took_s)
        if not is_last:
            self._step = 0
            self._save(self.progress)

    def finish(self) -> None:
        """Save the state in which ``fit`` left the model: callbacks may have changed it."""
        recall(self._model.history, self._restored)
        self.progress = self.progress.as_finished()
        self._save(self.progress)
        self._checkpoints.wait()

    def _resume_epoch(self, state: FitState) -> None:
        step = state.progress.step
        position, is_done = state.extra.get("data", {}), bool(state.extra.get("is_done"))
        # Fewer replicas may have had another step: the smaller batch that ends an epoch.
        is_done = is_done or 0 < (self._size or 0) <= step
        seen = self._feed.seek(position, self.trained, within=step > 0 and not is_done)
        if step or seen:
            self._begin_at(step, seen, is_done)
        if step:
            # Again, as callbacks have just begun the epoch a second time.
            self._snapshots.restore(state)
            self._snapshots.restore_metrics(state)
            self._begun = None if is_done else state
        self._step = step

    def _steps_are_done(self) -> None:
        """Make the replicas agree before the model is validated or saved."""
        if self._agreed:
            return
        self._agreed = True
        self._arrive(self._step)
        self._checkpoints.note_steps(self.progress.steps_before_epoch + self._step, resting=True)
        self._steps_ended = time.monotonic()
        self._feed.steps_end()
        self._agree()

    def _arrive(self, step: int) -> int:
        """Note that ``step`` steps of the epoch are done; return those of the call before."""
        before = self.trained
        self._step, self.trained = step, self._trained_before_epoch + step
        return before

    def _decide(self) -> frozenset[Wish]:
        wishes = []
        if self._agreement.is_due():
            if self._due.by_clock():
                wishes.append(Wish.SAVE)
            if self._losses.must_fail():
                wishes.append(Wish.FAIL)
        decided = self._agreement.at_boundary(wishes)
        if Wish.FAIL in decided:
            self._losses.fail(self._checkpoints.newest_folder(self._number))
        if Wish.STOP in decided:
            self._model.stop_training = True
        return decided

    def _leave(self, *, is_done: bool = False) -> NoReturn:
        if self._feed.can_seek and self.trained:
            self._save(self.progress.within(self._step), is_done=is_done)
        self._checkpoints.wait(leaving=True)
        self._part()
        raise Terminated

    def _save(self, progress: Progress, *, is_done: bool = False) -> None:
        if self._losses.must_fail():
            self._losses.fail(self._checkpoints.newest_folder(self._number))
        self._due.saved()
        state = self._snapshots.take(progress, self.trained)
        state = replace(state, extra={**state.extra, "is_done": is_done})
        self._checkpoints.save(self._number, state, self._published)

    def _published(self, folder: Path, progress: Progress) -> None:
        if self._reporter is not None:
            self._reporter.saved(folder, progress.next_epoch)


def callback_for(keras: Any, watch: Watch) -> Any:
    """Return a callback of ``keras`` that tells ``watch`` what happens."""

    class WatchCallback(keras.callbacks.Callback):  # type: ignore[misc] # two Kerases, no types
        # Both say that the callback may be given values that are still on the device, and be
        # called beside the training loop; otherwise Keras would wait for each step's result.
        async_safe = True
        _supports_tf_logs = True

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
            watch.train_begins(self.params)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            watch.epoch_begins(epoch)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            watch.batch_begins()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            watch.batch_ends(batch + 1, logs or {})

        def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            watch.validation_begins()

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            watch.validation_boundary()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            last = epoch + 1 >= self.params["epochs"] or bool(self.model.stop_training)
            watch.epoch_ends(epoch, logs or {}, is_last=last)

    return WatchCallback()

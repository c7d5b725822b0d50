"""Step and epoch hooks of one ``fit`` call."""

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
    """Captures and restores a call's state: `state.snapshot.Snapshot`, or a loop's own class."""

    def take(self, progress: Progress, trained: int) -> FitState:
        """Return the state after ``trained`` steps, copied to host memory."""

    def restore(self, state: FitState) -> None:
        """Restore everything except the epoch's metrics."""

    def hold_metrics(self) -> None:
        """Keep the epoch's current metrics, as validation uses the same variables."""

    def release_metrics(self) -> None:
        """Discard the kept metrics when another epoch begins."""

    def restore_metrics(self, state: FitState) -> None:
        """Restore the metrics of an interrupted epoch."""

    def restore_callbacks(self, state: FitState) -> None:
        """Restore only the state of callbacks."""


class Watch:
    """Reports one ``fit`` call, saves its state, and ends it on request.

    Args:
        checkpoints: The job's checkpoints.
        number: The number of the call.
        model: The trained model.
        progress: Progress of earlier calls.
        snapshots: Captures and restores state.
        saved: The checkpoint to resume from, if any.
        reporter: Reports to the run; None in tasks that do not report.
        feed: The training data.
        agreement: Requests that all tasks handle at the same step.
        agree: Synchronizes state that each replica changed separately.
        part: Barrier before all tasks exit, once the state is saved.
        begin_at: Tells Keras the progress of the first epoch: steps, steps of the pass over the
            data, and whether all its steps are done.
        losses: Detects NaN losses.
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
        """First step of this generation's first epoch."""
        self.trained = int(saved.state.extra.get("trained", 0)) if saved is not None else 0
        """Completed steps of this call, over all generations."""
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
        """Process Keras' parameters of the call, and restore the saved state."""
        self._size = params.get("steps")
        if self._reporter is not None:
            self._reporter.expect_steps(self._size)
        self._agreement.begin(self._number)
        if self._saved is not None:
            self._snapshots.restore(self._saved.state)

    def report_beside(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Report the values that ``source`` returns together with the metrics."""
        if self._reporter is not None:
            self._reporter.beside = source

    def epoch_begins(self, epoch: int) -> None:
        """Begin an epoch; the first one restores the saved state."""
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
        """Handle due actions between two steps.

        All tasks call this at the same steps, so that they save their state at the same ones.

        Args:
            step: Completed steps of the epoch; None for the number given to `batch_ends`.

        Raises:
            Terminated: The job is left; the state is saved.
            TimonelError: The loss is NaN or infinite, and that ends the job.
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
        """Undo the effect of a repeated step-begin callback on resumed callbacks."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._snapshots.restore_callbacks(begun)

    def batch_ends(self, step: int, logs: Mapping[str, Any]) -> None:
        """Record ``step`` completed steps of the epoch, with Keras' logs."""
        self._step = max(self._step, step)
        self._losses.note(self.progress.next_epoch, step, logs.get("loss"))
        if self._reporter is not None:
            self._reporter.batch(step, logs)

    def validation_begins(self) -> None:
        """End the epoch's training steps, as validation begins."""
        self._steps_are_done()
        self._agreement.pace_changes()
        self._snapshots.hold_metrics()

    def validation_boundary(self) -> None:
        """Leave the job between two steps of validation, if requested."""
        if self._agreed and Wish.LEAVE in self._decide():
            self._leave(is_done=True)

    def epoch_ends(self, epoch: int, logs: Mapping[str, Any], *, is_last: bool) -> None:
        """Save and report an epoch.

        `finish` saves the last one, once ``fit`` has ended.
        """
        self._steps_are_done()
        steps = self._step
        self.progress = self.progress.after(epoch, logs, self.progress.steps_before_epoch + steps)
        # Report first: an epoch lost between the two is trained and reported again in the same
        # place. In the other order its metrics would be lost.
        if self._reporter is not None:
            took_s = self._steps_ended - self._epoch_begun
            self._reporter.epoch_ends(epoch, logs, steps=steps, took_s=took_s)
        if not is_last:
            self._step = 0
            self._save(self.progress)

    def finish(self) -> None:
        """Save the final state after ``fit``.

        Callbacks may have changed the model at the end.
        """
        recall(self._model.history, self._restored)
        self.progress = self.progress.as_finished()
        self._save(self.progress)
        self._checkpoints.wait()

    def _resume_epoch(self, state: FitState) -> None:
        step = state.progress.step
        position, is_done = state.extra.get("data", {}), bool(state.extra.get("is_done"))
        # With fewer replicas the epoch may have had one more step, with its smaller last batch.
        is_done = is_done or 0 < (self._size or 0) <= step
        seen = self._feed.seek(position, self.trained, within=step > 0 and not is_done)
        if step or seen:
            self._begin_at(step, seen, is_done)
        if step:
            # Restore again, as callbacks have just begun the epoch a second time.
            self._snapshots.restore(state)
            self._snapshots.restore_metrics(state)
            self._begun = None if is_done else state
        self._step = step

    def _steps_are_done(self) -> None:
        """Synchronize the replicas before the model is validated or saved."""
        if self._agreed:
            return
        self._agreed = True
        self._arrive(self._step)
        self._checkpoints.note_steps(self.progress.steps_before_epoch + self._step, resting=True)
        self._steps_ended = time.monotonic()
        self._feed.steps_end()
        self._agree()

    def _arrive(self, step: int) -> int:
        """Record the epoch's completed steps; return the call's previous total."""
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
    """Return a Keras callback that informs ``watch``."""

    class WatchCallback(keras.callbacks.Callback):  # type: ignore[misc] # two Kerases, no types
        # Both allow Keras to pass values that are still on the device, and to call the callback
        # beside the training loop; otherwise Keras would wait for each step's result.
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

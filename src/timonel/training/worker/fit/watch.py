"""Step and epoch hooks of one ``fit`` call, and the check of its losses for NaN."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from timonel.errors import TimonelError
from timonel.training.worker.fit.agreement import TaskAction
from timonel.training.worker.fit.checkpoints import Checkpoint, FitState, Progress
from timonel.training.worker.fit.model_fit import recall
from timonel.training.worker.fit.services import Services
from timonel.training.worker.private import mid_epoch
from timonel.training.worker.reports.reporting import Reporter
from timonel.training.worker.state.callback_state import callback_of
from timonel.training.worker.state.checkpoint_writer import Due
from timonel.training.worker.state.data_position import Feed
from timonel.training.worker.termination import Terminated

_MAX_LOSSES = 10_000
"""Maximum number of losses kept, unread and on the device, between two checks."""


@dataclass(frozen=True)
class FitCall:
    """One ``fit`` call of the script."""

    number: int  # of the call in the process
    model: Any
    arguments: dict[str, Any]  # by name
    before: Progress  # progress of earlier calls, or of earlier generations of this one
    saved: Checkpoint | None = None  # the checkpoint to resume from, if any


class Losses:
    """The latest losses of a ``fit`` call, checked once a second; a NaN is located to the step."""

    def __init__(self, *, ends_job: bool = False) -> None:
        self._ends_job = ends_job
        self._latest: deque[tuple[int, int, Any]] = deque(maxlen=_MAX_LOSSES)
        self._found: tuple[int, int] | None = None

    def note(self, epoch: int, step: int, loss: Any) -> None:
        """Record the loss after ``step`` steps of an epoch, from 0; does not block."""
        if self._ends_job and loss is not None:
            self._latest.append((epoch, step, loss))

    def must_fail(self) -> bool:
        """Tell whether a NaN or infinite loss ends the job; wait for the last loss."""
        if self._latest and not math.isfinite(float(self._latest[-1][2])):
            self._found = next(
                (epoch, step)
                for epoch, step, loss in self._latest
                if not math.isfinite(float(loss))
            )
        self._latest.clear()
        return self._found is not None

    def fail(self, newest: Path | None) -> NoReturn:
        """Raise the error that ends the job, naming the last checkpoint."""
        where = f" at epoch {self._found[0] + 1}, step {self._found[1]}" if self._found else ""
        kept = "no checkpoint exists yet" if newest is None else f"the last checkpoint is {newest}"
        raise TimonelError(
            f"the loss is NaN or infinite{where}; {kept}",
            hint="use a smaller learning rate, clip gradients, or check the data of that step",
        )


@dataclass(eq=False)
class FitWatch:
    """Reports one ``fit`` call, saves its state, and ends it on request."""

    services: Services
    call: FitCall
    snapshots: Any
    _: KW_ONLY
    reporter: Reporter | None = None
    feed: Feed = field(default_factory=Feed)
    average: Callable[[], None] = lambda: None  # of state that each replica changed separately
    _begun: FitState | None = None
    _size: int | None = None
    _steps_ended: bool = False
    _epoch_begun_at: float = 0.0
    _steps_ended_at: float = 0.0

    def __post_init__(self) -> None:
        self.number, self._model, saved = self.call.number, self.call.model, self.call.saved
        self.progress = self._restored = self.call.before
        self.first_step = self._step = self.progress.step
        """First step of this generation's first epoch."""
        self.trained = int(saved.state.extra["trained"]) if saved is not None else 0
        """Completed steps of this call, over all generations."""
        self._trained_at_start = self.trained
        self._trained_before_epoch = self.trained - self.first_step
        self._saved = saved
        self._checkpoints = self.services.checkpoints
        self._agreement = self.services.agreement
        self._losses = Losses(ends_job=self.services.settings.faults.stop_on_nan)
        self._due = Due(self._checkpoints.policy)

    def train_begins(self, params: Mapping[str, Any]) -> None:
        """Process Keras' parameters of the call, and restore the saved state."""
        self._size = params.get("steps")
        if self.reporter is not None:
            self.reporter.expect_steps(self._size)
        self._agreement.begin(self.number)
        self.snapshots.begin()
        if self._saved is not None:
            self.snapshots.restore(self._saved.state)

    def report_beside(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Report the values that ``source`` returns together with the metrics."""
        if self.reporter is not None:
            self.reporter.beside = source

    def epoch_begins(self, epoch: int) -> None:
        """Begin an epoch; the first one restores the saved state."""
        recall(self._model.history, self._restored)
        self._step = 0
        self._trained_before_epoch = self.trained - (self.first_step if self._saved else 0)
        self.snapshots.release_metrics()
        if self._saved is not None:
            saved, self._saved = self._saved, None
            self._resume_epoch(saved.state)
        self.feed.epoch_begins(epoch)
        self._agreement.pace_changes()
        self._epoch_begun_at = time.monotonic()
        self._steps_ended = False
        if self.reporter is not None:
            self.reporter.epoch_begins(epoch)

    def step_boundary(self, step: int | None = None) -> None:
        """Handle due actions after ``step`` steps of the epoch, by default as in `batch_ends`."""
        # All tasks call this at the same steps, so that they save their state at the same ones.
        before = self._arrive(self._step if step is None else step)
        self._checkpoints.note_steps(self.progress.steps_before_epoch + self._step)
        decided = self._decide()
        if TaskAction.LEAVE in decided:
            self._leave()
        due = TaskAction.SAVE in decided or self._due.by_steps(before, self.trained)
        if due and self.feed.can_seek and self.trained > before:
            self._save(self.progress.within(self._step))
        self.feed.step_begins(self.trained)
        self.snapshots.note_trained_variables(1)

    def batch_begins(self) -> None:
        """Undo the effect of a repeated step-begin callback on resumed callbacks."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self.snapshots.restore_callbacks(begun)

    def batch_ends(self, step: int, logs: Mapping[str, Any]) -> None:
        """Record ``step`` completed steps of the epoch, with Keras' logs."""
        self._step = max(self._step, step)
        self.snapshots.note_trained_variables(2)
        self._losses.note(self.progress.next_epoch, step, logs.get("loss"))
        if self.reporter is not None:
            self.reporter.batch(step, logs)

    def validation_begins(self) -> None:
        """End the epoch's training steps, as validation begins."""
        self._end_steps()
        self._agreement.pace_changes()
        self.snapshots.hold_metrics()

    def validation_boundary(self) -> None:
        """Leave the job between two steps of validation, if requested."""
        if self._steps_ended and TaskAction.LEAVE in self._decide():
            self._leave(is_done=True)

    def epoch_ends(self, epoch: int, logs: Mapping[str, Any], *, is_last: bool) -> None:
        """Save and report an epoch; `finish` saves the last one, once ``fit`` has ended."""
        self._end_steps()
        steps = self._step
        self.progress = self.progress.after(epoch, logs, self.progress.steps_before_epoch + steps)
        # Report first: an epoch lost between the two is trained and reported again in the same
        # place. In the other order its metrics would be lost.
        if self.reporter is not None:
            took_s = self._steps_ended_at - self._epoch_begun_at
            self.reporter.epoch_ends(epoch, logs, steps=steps, took_s=took_s)
        if not is_last:
            self._step = 0
            self._save(self.progress)

    def finish(self) -> None:
        """Save the final state after ``fit``: callbacks may have changed the model at the end."""
        recall(self._model.history, self._restored)
        self.progress = self.progress.as_finished()
        self._save(self.progress)
        self._checkpoints.wait()

    def _resume_epoch(self, state: FitState) -> None:
        step = state.progress.step
        position, is_done = state.extra.get("data", {}), bool(state.extra.get("is_done"))
        self.feed.seek_validation(state.extra.get("validation"), within=is_done)
        # With fewer replicas the epoch may have had one more step, with its smaller last batch.
        is_done = is_done or 0 < (self._size or 0) <= step
        seen = self.feed.seek(position, self.trained, within=step > 0 and not is_done)
        if step or seen:
            mid_epoch.begin_at(step, seen, is_done)
        if step:
            # Restore again, as callbacks have just begun the epoch a second time.
            self.snapshots.restore(state)
            self.snapshots.restore_metrics(state)
            self._begun = None if is_done else state
        self._step = step

    def _end_steps(self) -> None:
        """Average the replicas' state before the model is validated or saved."""
        if self._steps_ended:
            return
        self._steps_ended = True
        self._arrive(self._step)
        self._checkpoints.note_steps(self.progress.steps_before_epoch + self._step, resting=True)
        self._steps_ended_at = time.monotonic()
        self.feed.steps_end()
        self.average()

    def _arrive(self, step: int) -> int:
        """Record the epoch's completed steps; return the call's previous total."""
        before = self.trained
        self._step, self.trained = step, self._trained_before_epoch + step
        return before

    def _decide(self) -> frozenset[TaskAction]:
        actions = []
        if self._agreement.is_due():
            if self._due.by_clock():
                actions.append(TaskAction.SAVE)
            if self._losses.must_fail():
                actions.append(TaskAction.FAIL)
        decided = self._agreement.at_boundary(actions)
        if TaskAction.FAIL in decided:
            self._losses.fail(self._checkpoints.newest_folder(self.number))
        if TaskAction.STOP in decided:
            self._model.stop_training = True
        return decided

    def _leave(self, *, is_done: bool = False) -> NoReturn:
        # Before its first step, an epoch begins again: from the checkpoint of the last one.
        if self.feed.can_seek and self._step and self.trained > self._trained_at_start:
            self._save(self.progress.within(self._step), is_done=is_done)
        self._checkpoints.wait(leaving=True)
        self.services.barrier()
        raise Terminated

    def _save(self, progress: Progress, *, is_done: bool = False) -> None:
        if self._losses.must_fail():
            self._losses.fail(self._checkpoints.newest_folder(self.number))
        self._due.saved()
        state = self.snapshots.take(progress, self.trained)
        state = replace(state, extra={**state.extra, "is_done": is_done})
        self._checkpoints.save(self.number, state, self._published)

    def _published(self, folder: Path, progress: Progress) -> None:
        if self.reporter is not None:
            self.reporter.saved(folder, progress.next_epoch)


def callback_for(keras: Any, watch: FitWatch) -> Any:
    """Return a Keras callback that informs ``watch``."""

    def epoch_ends(callback: Any, epoch: int, logs: Any) -> None:
        is_last = epoch + 1 >= callback.params["epochs"] or bool(callback.model.stop_training)
        watch.epoch_ends(epoch, logs or {}, is_last=is_last)

    return callback_of(
        keras,
        on_train_begin=lambda callback, _: watch.train_begins(callback.params),
        on_epoch_begin=lambda _, epoch, __: watch.epoch_begins(epoch),
        on_train_batch_begin=lambda *_: watch.batch_begins(),
        on_train_batch_end=lambda _, batch, logs: watch.batch_ends(batch + 1, logs or {}),
        on_test_begin=lambda *_: watch.validation_begins(),
        on_test_batch_begin=lambda *_: watch.validation_boundary(),
        on_epoch_end=epoch_ends,
    )

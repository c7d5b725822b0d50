"""Managed ``fit`` calls: numbered, watched, checkpointed, resumed, with distributed data.

`Fits.install` replaces ``keras.Model.fit`` by a wrapper around the original. The user's script
calls ``model.fit`` as usual.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from timonel.tracking import RunWriter
from timonel.training.worker import redirected_saves
from timonel.training.worker.fit.agreement import Agreement, Wish
from timonel.training.worker.fit.checkpoints import Checkpoint, Checkpoints, Progress
from timonel.training.worker.fit.nan_check import Losses
from timonel.training.worker.fit.watch import Watch, callback_for
from timonel.training.worker.fit.wrapping import recall, replace_fit, with_callback
from timonel.training.worker.inputs import batches, building
from timonel.training.worker.private import backups, mid_epoch
from timonel.training.worker.reports.reporting import Plan, Reporter
from timonel.training.worker.reports.summaries import Summaries
from timonel.training.worker.state import callback_state, memory
from timonel.training.worker.state.data_position import Feed
from timonel.training.worker.state.replicas import Replicas
from timonel.training.worker.state.snapshot import Snapshot, restore_model
from timonel.training.worker.state.sources import feed_of
from timonel.training.worker.termination import Termination

logger = logging.getLogger(__name__)

BeforeFit = Callable[[Any, dict[str, Any]], None]
"""Hook that may change a ``fit`` call's model and arguments."""


AfterFit = Callable[[Any, Any], None]
"""Hook that may extend the ``History`` of a model's ``fit`` call."""


class Loop(Protocol):
    """A replacement for Keras' own ``fit``."""

    def fit(self, model: Any, arguments: dict[str, Any], watch: Watch) -> Any:
        """Train and return the ``History``.

        ``arguments["callbacks"]`` ends with the callback that informs ``watch`` about epochs and
        steps; the loop calls `Watch.step_boundary` between steps. It begins with
        ``arguments["initial_epoch"]`` and, in that epoch, with the step ``watch.first_step``.
        """


@dataclass(frozen=True)
class Fitted:
    """Model and data of the last ``fit`` call."""

    model: Any
    data: Any


class Fits:
    """The ``fit`` calls of one process.

    Not thread-safe: scripts call ``fit`` from one thread.

    Args:
        keras: The Keras module, ``keras`` or ``tf_keras``.
        checkpoints: State kept between generations.
        run: The chief's run writer; None in other tasks.
        tensorboard: The folder of TensorBoard's event files.
        strategy: The strategy that the script runs under, if any.
        workers: Number of training processes.
        agreement: Requests that all tasks handle at the same step.
        termination: Tells whether the process was asked to stop.
        part: Barrier before all tasks exit.
        stop_on_nan: Whether a loss that is NaN or infinite ends the job.
        before_fit: Called at the start of each call, before state is restored.
        loop: Replacement for Keras' own ``fit``; its optional ``snapshots(model, arguments)``
            returns a custom `watch.Snapshots`.
        last_words: File with the error to report if the kernel's OOM killer ends the process.
    """

    def __init__(  # noqa: PLR0913 - one process's fits, with all that takes part in them
        self,
        keras: Any,
        checkpoints: Checkpoints,
        *,
        run: RunWriter | None,
        tensorboard: Path,
        strategy: Any,
        workers: int = 1,
        agreement: Agreement | None = None,
        termination: Termination | None = None,
        part: Callable[[], None] = lambda: None,
        stop_on_nan: bool = False,
        before_fit: Sequence[BeforeFit] = (),
        loop: Loop | None = None,
        last_words: Path | None = None,
    ) -> None:
        self.last: Fitted | None = None
        self.is_preparing = False
        self.before_fit = list(before_fit)
        self.after_fit: list[AfterFit] = []
        """Called at the end of each call, once its state is saved."""
        self.loop = loop
        self.learning_rate: Callable[[Any], float | None] = building.learning_rate
        """Returns a model's current learning rate."""
        self.describe_batches: Callable[[int], str] = functools.partial(
            batches.described,
            replicas=strategy.num_replicas_in_sync if strategy is not None else 1,
        )
        """Describes a batch size in words."""
        self._keras = keras
        self._checkpoints = checkpoints
        self._run = run
        self._summaries = Summaries(tensorboard)
        self._strategy = strategy
        self._replicas = strategy.num_replicas_in_sync if strategy is not None else 1
        self._parts = Replicas(strategy, workers)
        self._agreement = agreement or Agreement()
        self._termination = termination or Termination()
        self._part = part
        self._stop_on_nan = stop_on_nan
        self._last_words = last_words
        self._count = 0
        self._steps = 0
        self._epochs = 0

    def install(self) -> None:
        """Replace ``fit`` of this process's Keras."""
        replace_fit(self._keras, self._fit)

    def prepare(self) -> None:
        """Mark the next distributed dataset as training data."""
        self.is_preparing = True

    def take_training_data(self) -> bool:
        """Tell whether the dataset now distributed is training data.

        ``fit`` distributes its training data first, then its validation data.
        """
        preparing, self.is_preparing = self.is_preparing, False
        return preparing

    def _fit(self, original: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
        number, self._count = self._count, self._count + 1
        data = arguments.get("x")
        for change in self.before_fit:
            change(model, arguments)
        batch_size = building.batch_size(arguments.get("x"), arguments.get("batch_size"))
        saved = self._checkpoints.latest(number)
        if saved is not None and saved.progress.finished:
            history = self._replay(number, model, data, saved)
        else:
            with memory.explained(batch_size, self._replicas, self._last_words):
                history = self._train(original, number, model, arguments, saved, batch_size)
        self.last = Fitted(model, data)
        for see in self.after_fit:
            see(model, history)
        return history

    def _replay(self, number: int, model: Any, data: Any, saved: Checkpoint) -> Any:
        logger.info("fit %d was finished before the restart: its weights are restored", number)
        building.ensure_built(self._keras, model, data)
        restore_model(model, saved.state, self._parts)
        self._note(saved.progress)
        history = self._keras.callbacks.History()
        history.set_model(model)
        history.set_params({"verbose": 0, "epochs": saved.progress.next_epoch, "steps": None})
        history.on_train_begin()
        recall(history, saved.progress)
        model.history = history
        return history

    def _train(
        self,
        original: Callable[..., Any],
        number: int,
        model: Any,
        arguments: dict[str, Any],
        saved: Checkpoint | None,
        batch_size: int | None,
    ) -> Any:
        feed = feed_of(self._keras, arguments, number, resumes=saved is not None)
        logger.info("fit %d: %s", number, feed.note)
        if saved is not None:
            self._prepare_to_go_on(number, model, arguments, saved)
        callbacks = callback_state.listed(arguments.get("callbacks"))
        before = saved.progress if saved is not None else Progress(steps=self._steps)
        watch = Watch(
            self._checkpoints,
            number,
            model,
            before,
            snapshots=self._snapshots(model, arguments, callbacks, feed),
            saved=saved,
            reporter=self._reporter(number, model, arguments, before, batch_size),
            feed=feed,
            agreement=self._agreement,
            agree=building.averaging(model, self._strategy, self._replicas),
            part=self._part,
            begin_at=mid_epoch.begin_at,
            losses=Losses(ends_job=self._stop_on_nan),
        )
        arguments["callbacks"] = with_callback(
            arguments.get("callbacks"), callback_for(self._keras, watch)
        )
        if arguments.get("verbose", "auto") == "auto":
            # Output goes to a log: one line per epoch, from one task only.
            arguments["verbose"] = 2 if self._run is not None else 0
        self.prepare()
        ours = contextlib.nullcontext() if saved is None else backups.not_restored(self._keras)
        redirected = redirected_saves.redirected_callbacks(self._keras, callbacks)
        with ours, redirected, self._termination.deferred(lambda: self._agreement.ask(Wish.LEAVE)):
            history = self._run_fit(original, model, arguments, watch)
            watch.finish()
        self._note(watch.progress)
        return history

    def _run_fit(
        self,
        original: Callable[..., Any],
        model: Any,
        arguments: dict[str, Any],
        watch: Watch,
    ) -> Any:
        with self._flushed():
            if self.loop is not None:
                return self.loop.fit(model, arguments, watch)
            with (
                mid_epoch.entering(self._keras),
                mid_epoch.stepping(model, watch.step_boundary),
            ):
                return original(**arguments)

    @contextlib.contextmanager
    def _flushed(self) -> Iterator[None]:
        """Finish writing a checkpoint, even if ``fit`` raises."""
        try:
            yield
        except BaseException:
            self._checkpoints.drain()
            raise

    def _prepare_to_go_on(
        self, number: int, model: Any, arguments: dict[str, Any], saved: Checkpoint
    ) -> None:
        progress = saved.progress
        at = f"epoch {progress.next_epoch + 1}"
        if progress.step:
            at += f", step {progress.step + 1}"
        logger.info("fit %d goes on at %s", number, at)
        arguments["initial_epoch"] = progress.next_epoch
        callback_state.go_on(self._keras, arguments.get("callbacks"))
        building.ensure_built(self._keras, model, arguments.get("x"))
        # Fails early if the model has changed; the state is restored once callbacks have begun.
        restore_model(model, saved.state, self._parts)

    def _snapshots(
        self, model: Any, arguments: dict[str, Any], callbacks: Sequence[Any], feed: Feed
    ) -> Any:
        own = getattr(self.loop, "snapshots", None)
        if own is not None:
            return own(model, arguments)
        return Snapshot(model, callbacks, self._parts, feed)

    def _reporter(
        self,
        number: int,
        model: Any,
        arguments: Mapping[str, Any],
        before: Progress,
        batch_size: int | None,
    ) -> Reporter | None:
        if batch_size is not None:
            logger.info("fit %d: %s", number, self.describe_batches(batch_size))
        if self._run is None:
            return None
        plan = Plan(
            fit=number,
            epochs=int(arguments.get("epochs", 1)),
            first_epoch=int(arguments.get("initial_epoch", 0)),
            first_step=before.step,
            batch_size=batch_size,
            steps_before=before.steps_before_epoch,
            epochs_before=self._epochs,
        )
        rate = functools.partial(self.learning_rate, model)
        return Reporter(self._run, self._summaries, plan, learning_rate=rate)

    def _note(self, progress: Progress) -> None:
        self._steps = progress.steps
        self._epochs += progress.next_epoch

"""Following one ``fit`` call: what is done at the ends of its steps and epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from timonel.training.worker import building
from timonel.training.worker.checkpoints import Checkpoints, Progress
from timonel.training.worker.loaded import Loaded
from timonel.training.worker.reporting import Reporter


class Watch:
    """Follows one ``fit`` call: reports it and saves its state at the ends of epochs.

    Args:
        checkpoints: Where state is kept.
        number: The number of the call.
        model: What is trained.
        progress: How far earlier generations have come.
        reporter: Tells the run; None where another task does.
        loaded: The load that is trained on; each epoch is given its own order of records, however
            many iterators Keras makes of it.
        agree: Makes the replicas agree on what each has changed by itself.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        number: int,
        model: Any,
        progress: Progress,
        *,
        reporter: Reporter | None,
        loaded: Loaded | None,
        agree: Callable[[], None],
    ) -> None:
        self.progress = progress
        self._restored = progress
        self._checkpoints = checkpoints
        self._number = number
        self._model = model
        self._reporter = reporter
        self._loaded = loaded
        self._agree = agree
        self._agreed = False
        self._steps_in_epoch = 0
        self._epoch_begun = 0.0
        self._steps_ended = 0.0

    def train_begins(self, params: Mapping[str, Any]) -> None:
        """Take over what Keras found out about the call."""
        if self._reporter is not None:
            self._reporter.expect_steps(params.get("steps"))

    def epoch_begins(self, epoch: int) -> None:
        """Note that an epoch begins; before the first one, History gets the earlier epochs."""
        recall(self._model.history, self._restored)
        if self._loaded is not None:
            self._loaded.stream.seek(epoch)
        self._epoch_begun = time.monotonic()
        self._steps_in_epoch = 0
        self._agreed = False
        if self._reporter is not None:
            self._reporter.epoch_begins(epoch)

    def batch_ends(self, step: int, logs: Mapping[str, Any]) -> None:
        """Note that ``step`` steps of the epoch are done. May be called from any thread."""
        self._steps_in_epoch = max(self._steps_in_epoch, step)
        if self._reporter is not None:
            self._reporter.batch(step, logs)

    def steps_are_done(self) -> None:
        """Make the replicas agree before the model is validated or saved."""
        if not self._agreed:
            self._steps_ended = time.monotonic()
            self._agree()
        self._agreed = True

    def epoch_ends(self, epoch: int, logs: Mapping[str, Any], *, is_last: bool) -> None:
        """Save and report an epoch. The last one is saved by `finish`, once ``fit`` is through."""
        self.steps_are_done()
        steps = self._steps_in_epoch
        self.progress = self.progress.after(epoch, logs, self.progress.steps + steps)
        # Reported first: an epoch that is lost between the two is trained and reported again, in
        # the same place. The other way round, its metrics would be missing for good.
        if self._reporter is not None:
            took_s = self._steps_ended - self._epoch_begun
            self._reporter.epoch_ends(epoch, logs, steps=steps, took_s=took_s)
        if not is_last:
            self._save()

    def finish(self) -> None:
        """Save the state in which ``fit`` left the model: callbacks may have changed it."""
        recall(self._model.history, self._restored)
        self.progress = self.progress.as_finished()
        self._save()

    def _save(self) -> None:
        variables = building.variables(self._model)
        folder = self._checkpoints.save(self._number, variables, self.progress)
        if folder is not None and self._reporter is not None:
            self._reporter.saved(folder, self.progress.next_epoch)


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

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            watch.batch_ends(batch + 1, logs or {})

        def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            watch.steps_are_done()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            last = epoch + 1 >= self.params["epochs"] or bool(self.model.stop_training)
            watch.epoch_ends(epoch, logs or {}, is_last=last)

    return WatchCallback()


def recall(history: Any, progress: Progress) -> None:
    """Put the epochs of earlier generations in front of a ``History``, once."""
    if not progress.epochs or progress.epochs[0] in history.epoch:
        return
    history.epoch[:0] = progress.epochs
    for name, values in progress.history.items():
        history.history[name] = [*values, *history.history.get(name, [])]

"""``fit`` as a job runs it: numbered, watched, checkpointed, resumed, its data dealt out.

`Fits.install` replaces ``keras.Model.fit`` by one that does all this around the original. The
user's script calls ``model.fit`` and knows nothing of it.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.tracking import RunWriter
from timonel.training.worker import building
from timonel.training.worker.checkpoints import Checkpoint, Checkpoints, Progress, restore
from timonel.training.worker.loaded import find_loaded
from timonel.training.worker.reporting import Plan, Reporter, Summaries
from timonel.training.worker.watch import Watch, callback_for, recall

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fitted:
    """What the last ``fit`` call trained, and on what."""

    model: Any
    data: Any


class Fits:
    """The ``fit`` calls of one process. Not thread-safe: scripts call ``fit`` from one thread.

    Args:
        keras: The Keras module, ``keras`` or ``tf_keras``.
        checkpoints: Where state is kept between generations.
        run: Where the chief reports; None in all other tasks.
        tensorboard: The folder of TensorBoard's event files.
        strategy: The strategy that the script runs under, if any.
    """

    def __init__(
        self,
        keras: Any,
        checkpoints: Checkpoints,
        *,
        run: RunWriter | None,
        tensorboard: Path,
        strategy: Any,
    ) -> None:
        self.last: Fitted | None = None
        self.is_preparing = False
        self._keras = keras
        self._checkpoints = checkpoints
        self._run = run
        self._summaries = Summaries(tensorboard)
        self._strategy = strategy
        self._replicas = strategy.num_replicas_in_sync if strategy is not None else 1
        self._count = 0
        self._steps = 0
        self._epochs = 0

    def install(self) -> None:
        """Replace ``fit`` of this process's Keras."""
        original = self._keras.Model.fit
        signature = inspect.signature(original)

        @functools.wraps(original)
        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(model, *args, **kwargs).arguments
            arguments.pop(next(iter(signature.parameters)))
            return self._fit(functools.partial(original, model), model, dict(arguments))

        self._keras.Model.fit = fit

    def take_training_data(self) -> bool:
        """Tell whether the dataset that is being distributed is one to train on.

        ``fit`` distributes its training data first, then its validation data.
        """
        preparing, self.is_preparing = self.is_preparing, False
        return preparing

    def _fit(self, original: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
        number, self._count = self._count, self._count + 1
        data = arguments.get("x")
        saved = self._checkpoints.latest(number)
        if saved is not None:
            building.ensure_built(model, data)
            restore(building.variables(model), saved.arrays)
        if saved is not None and saved.progress.finished:
            history = self._replay(number, model, saved)
        else:
            history = self._train(original, number, model, arguments, saved)
        self.last = Fitted(model, data)
        return history

    def _replay(self, number: int, model: Any, saved: Checkpoint) -> Any:
        logger.info("fit %d was finished before the restart: its weights are restored", number)
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
    ) -> Any:
        before = saved.progress if saved is not None else Progress(steps=self._steps)
        if saved is not None:
            logger.info("fit %d goes on at epoch %d", number, before.next_epoch + 1)
            arguments["initial_epoch"] = before.next_epoch
        watch = Watch(
            self._checkpoints,
            number,
            model,
            before,
            reporter=self._reporter(number, arguments, before),
            loaded=find_loaded(arguments.get("x")),
            agree=self._agreement(model),
        )
        arguments["callbacks"] = _with_callback(
            arguments.get("callbacks"), callback_for(self._keras, watch)
        )
        if arguments.get("verbose", "auto") == "auto":
            # Output goes to a log: one line for each epoch there, from one task.
            arguments["verbose"] = 2 if self._run is not None else 0
        self.is_preparing = True
        history = original(**arguments)
        watch.finish()
        self._note(watch.progress)
        return history

    def _agreement(self, model: Any) -> Callable[[], None]:
        """Return what makes the replicas agree."""
        if self._replicas == 1:
            return lambda: None
        made: list[Callable[[], None]] = []

        def agree() -> None:
            # Made on first use: by then the model has its variables.
            if not made:
                made.append(building.averaging(model, self._strategy))
            made[0]()

        return agree

    def _reporter(
        self, number: int, arguments: Mapping[str, Any], before: Progress
    ) -> Reporter | None:
        batch_size = building.batch_size(arguments.get("x"), arguments.get("batch_size"))
        if batch_size is not None and self._replicas > 1:
            logger.info(
                "fit %d: the batch size %d is global, divided among %d replicas",
                number,
                batch_size,
                self._replicas,
            )
        if self._run is None:
            return None
        plan = Plan(
            fit=number,
            epochs=int(arguments.get("epochs", 1)),
            first_epoch=int(arguments.get("initial_epoch", 0)),
            batch_size=batch_size,
            steps_before=before.steps,
            epochs_before=self._epochs,
        )
        return Reporter(self._run, self._summaries, plan)

    def _note(self, progress: Progress) -> None:
        self._steps = progress.steps
        self._epochs += progress.next_epoch


def _with_callback(given: Any, ours: Any) -> Any:
    """Return the callbacks of a call with ours behind them."""
    if given is None:
        return [ours]
    if isinstance(given, list | tuple):
        return [*given, ours]
    if hasattr(given, "callbacks"):  # a CallbackList, which Keras takes as it is
        ours.set_model(given.model)
        ours.set_params(given.params)
        given.callbacks.append(ours)
        return given
    return [given, ours]

"""Managed ``fit`` calls: numbered, watched, checkpointed, resumed, with distributed data.

`Fits.install` replaces ``keras.Model.fit`` by a wrapper around the original. The user's script
calls ``model.fit`` as usual.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from timonel.errors import SpecError
from timonel.training.worker.fit.agreement import TaskAction
from timonel.training.worker.fit.checkpoints import Checkpoint, Progress
from timonel.training.worker.fit.model_fit import replace_method, replayed_history
from timonel.training.worker.fit.services import Services
from timonel.training.worker.fit.watch import FitCall, FitWatch, callback_for
from timonel.training.worker.inputs import building, fit_data, sharding
from timonel.training.worker.numerics import learning_rate
from timonel.training.worker.plugin import FitPlugin
from timonel.training.worker.private import hidden_state, mid_epoch, optimizers, saving
from timonel.training.worker.reports.reporting import FitPlan, Reporter, Summaries
from timonel.training.worker.state import callback_state
from timonel.training.worker.state.data_position import NOT_SAVED, Feed
from timonel.training.worker.state.snapshot import Snapshot, restore_model
from timonel.training.worker.state.sources import feed_of, keeps_state
from timonel.training.worker.state.variables import StrategyReplicas

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fitted:
    """Model and data of the last ``fit`` call, and the structure of the model's input."""

    model: Any
    data: Any
    validation: Any = None
    spec: Any = None


@dataclass(eq=False)
class Fits:
    """The ``fit`` calls of one process. Not thread-safe: scripts call ``fit`` from one thread.

    ``loop`` replaces Keras' own ``fit``: a `ps.loop.ParameterServerLoop`. Its ``fit`` starts at
    ``arguments["initial_epoch"]`` and ``watch.first_step``, and calls `FitWatch.step_boundary`
    between steps.
    """

    services: Services
    plugins: Sequence[FitPlugin] = ()
    _: KW_ONLY
    loop: Any = None
    last: Fitted | None = None
    is_fitting: bool = False
    _count: int = 0  # of calls so far, and the steps and epochs of all
    _steps: int = 0
    _epochs: int = 0
    _outer: FitWatch | None = None  # the call that is running
    # Calls inside callbacks, by number of the outer one and its epoch.
    _inner_counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    # Data of calls so far that differ from one call to the next.
    _used_data: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)

    def __post_init__(self) -> None:
        self._keras = self.services.keras
        self._summaries = Summaries(self.services.tensorboard_dir)
        self._replicas = StrategyReplicas(self.services.strategy, self.services.workers)

    def install(self) -> None:
        """Replace ``fit`` of this process's Keras."""
        replace_method(self._keras.Model, "fit", self._fit)

    def _fit(self, original: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
        if self._outer is not None:
            return self._fit_inside(self._outer, original, model, arguments)
        number, self._count = self._count, self._count + 1
        data, validation = arguments.get("x"), arguments.get("validation_data")
        spec = fit_data.data_spec(data)
        self.is_fitting = True  # until it ends: a failed call leaves a half-trained model
        if keeps_state(data):
            self._used_data.add(data)
        slots = building.optimizer_variables(getattr(model, "optimizer", None))
        owned = hidden_state.identities([*building.model_variables(model), *slots])
        self.services.variables.begin(owned)
        self.services.variables.take_back(model)
        for plugin in self.plugins:
            plugin.fit_begins(model, arguments)
        saved = self.services.checkpoints.latest(number)
        before = saved.progress if saved is not None else Progress(steps=self._steps)
        call = FitCall(number, model, arguments, before, saved)
        if saved is not None and saved.progress.finished:
            history = self._replay(call, saved)
        else:
            with contextlib.ExitStack() as stack:
                for plugin in self.plugins:
                    stack.enter_context(plugin.around_fit(arguments))
                history = self._train(original, call)
        if spec is None and not hasattr(data, "__dataframe__"):
            spec = fit_data.data_spec(arguments.get("x"))  # the feed has made a dataset
        self.last, self.is_fitting = Fitted(model, data, validation, spec), False
        for plugin in self.plugins:
            plugin.fit_ends(model, history)
        return history

    def _fit_inside(
        self, outer: FitWatch, original: Callable[..., Any], model: Any, arguments: dict[str, Any]
    ) -> Any:
        """Run a ``fit`` inside a callback of another: the outer one's checkpoints cover it."""
        if self.loop is not None:
            raise SpecError(
                "fit inside a callback of another fit does not work with parameter servers",
                hint="train with workers instead: --workers without --ps",
            )
        place = (outer.number, outer.progress.next_epoch)
        count, self._inner_counts[place] = self._inner_counts[place], self._inner_counts[place] + 1
        # Arrays are shuffled as they were before a restart, and differently each time.
        number = zlib.crc32(repr((*place, count)).encode())
        with contextlib.ExitStack() as stack:
            for plugin in self.plugins:
                if plugin.is_for_inner_fits:
                    plugin.fit_begins(model, arguments)
                    stack.enter_context(plugin.around_fit(arguments))
            stack.enter_context(mid_epoch.beside())
            if keeps_state(data := arguments.get("x")):
                if data in self._used_data:
                    self.services.warn(f"{NOT_SAVED}: data that calls of fit in callbacks share")
                self._used_data.add(data)
            feed = feed_of(self._keras, arguments, number, resumes=False)

            def epoch_begins(_callback: Any, epoch: int, _logs: Any) -> None:
                feed.epoch_begins(epoch)
                feed.step_begins(0)

            callback = callback_state.callback_of(
                self._keras,
                on_epoch_begin=epoch_begins,
                on_test_begin=lambda *_: feed.steps_end(),
                on_epoch_end=lambda *_: feed.steps_end(),
            )
            callback_state.add(arguments, callback)
            if arguments.get("verbose", "auto") == "auto":
                arguments["verbose"] = 0
            sharding.expect_training_data()
            return original(**arguments)

    def _replay(self, call: FitCall, saved: Checkpoint) -> Any:
        logger.info("fit %d finished before the restart: restoring its weights", call.number)
        # The script may give the same data to its next call.
        with mid_epoch.beside():
            feed = feed_of(self._keras, call.arguments, call.number, resumes=True)
        built = saved.state.extra["built"]  # the script may read the results of metrics
        building.ensure_built(self._keras, call.model, call.arguments.get("x"), built)
        callbacks = callback_state.listed(call.arguments.get("callbacks"))
        self._snapshot(call, callbacks, feed).restore(saved.state)
        feed.seek_validation(saved.state.extra.get("validation"), within=False)
        feed.seek_end(saved.state.extra["data"])
        self.services.variables.set_again(call.model, saved.state.extra["attributes"])
        if self.services.variables.missing:
            logger.info(
                "created by training, restored if the model is trained again: %s",
                ", ".join(self.services.variables.missing),
            )
        self.services.variables.set_aside(call.model)
        self._add(saved.progress)
        return replayed_history(self._keras, call.model, saved.progress)

    def _train(self, original: Callable[..., Any], call: FitCall) -> Any:
        services, model, arguments = self.services, call.model, call.arguments
        batch_size = fit_data.batch_size_of(arguments)  # before the feed replaces the data
        feed = feed_of(self._keras, arguments, call.number, resumes=call.saved is not None)
        logger.info("fit %d: %s", call.number, feed.note)
        if call.saved is not None:
            self._resume(call, call.saved)
        callbacks = callback_state.listed(arguments.get("callbacks"))
        watch = FitWatch(
            services,
            call,
            self._snapshot(call, callbacks, feed),
            reporter=self.reporter(call, batch_size),
            feed=feed,
            average=building.averaging(model, services.strategy, services.replicas),
        )
        callback_state.add(arguments, callback_for(self._keras, watch))
        if arguments.get("verbose", "auto") == "auto":
            # Output goes to a log: one line per epoch, from one task only.
            arguments["verbose"] = 2 if services.run is not None else 0
        sharding.expect_training_data()
        with (
            contextlib.nullcontext()
            if call.saved is None
            else saving.backups_not_restored(self._keras),
            services.termination.deferred(lambda: services.agreement.ask(TaskAction.LEAVE)),
        ):
            self._outer = watch
            try:
                history = self._run_loop(original, call, watch)
            except BaseException:
                services.checkpoints.drain()  # finish writing a checkpoint
                raise
            finally:
                self._outer = None
            watch.finish()
        self._add(watch.progress)
        return history

    def _run_loop(self, original: Callable[..., Any], call: FitCall, watch: FitWatch) -> Any:
        if self.loop is not None:
            return self.loop.fit(call.model, call.arguments, watch)
        ended = self.services.variables.step_ends
        with (
            mid_epoch.entering(self._keras),
            mid_epoch.stepping(call.model, watch.step_boundary, ended),
        ):
            return original(**call.arguments)

    def _resume(self, call: FitCall, saved: Checkpoint) -> None:
        progress, arguments = saved.progress, call.arguments
        step = f", step {progress.step + 1}" if progress.step else ""
        logger.info("fit %d resumes at epoch %d%s", call.number, progress.next_epoch + 1, step)
        arguments["initial_epoch"] = progress.next_epoch
        callback_state.go_on(self._keras, arguments.get("callbacks"))
        built = saved.state.extra["built"]
        building.ensure_built(self._keras, call.model, arguments.get("x"), built)
        # Fails early if the model has changed; the state is restored once callbacks have begun.
        restore_model(call.model, saved.state, self._replicas, self.services.variables)

    def _snapshot(self, call: FitCall, callbacks: Sequence[Any], feed: Feed) -> Snapshot:
        services = self.services
        return Snapshot(
            call.model, callbacks, self._replicas, feed, services.variables, services.warn
        )

    def reporter(self, call: FitCall, batch_size: int | None) -> Reporter | None:
        """Return the reporter of a call in the chief; log the batch size."""
        settings, replicas = self.services.settings, self.services.replicas
        arguments = call.arguments
        if batch_size is not None:
            logger.info(
                "fit %d: %s",
                call.number,
                fit_data.describe_batches(
                    batch_size,
                    replicas=replicas,
                    per_replica=settings.batches.batch_size_is == "per-replica",
                    accumulate=settings.batches.accumulate_gradients,
                ),
            )
        if self.services.run is None:
            return None
        plan = FitPlan(
            fit=call.number,
            epochs=int(arguments.get("epochs", 1)),
            first_epoch=int(arguments.get("initial_epoch", 0)),
            first_step=call.before.step,
            batch_size=batch_size,
            steps_before=call.before.steps_before_epoch,
            epochs_before=self._epochs,
        )
        rule = learning_rate.rule_of(settings, replicas)

        def rate() -> float | None:
            # A callback may compile the model again, with another optimizer.
            return optimizers.learning_rate(getattr(call.model, "optimizer", None), rule)

        return Reporter(self.services.run, self._summaries, plan, learning_rate=rate)

    def _add(self, progress: Progress) -> None:
        self._steps = progress.steps
        self._epochs += progress.next_epoch

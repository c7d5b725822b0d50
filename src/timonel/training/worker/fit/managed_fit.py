"""Managed ``fit`` calls: numbered, watched, checkpointed, resumed, with distributed data.

`Fits.install` replaces ``keras.Model.fit`` by a wrapper around the original. The user's script
calls ``model.fit`` as usual.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.training.worker.fit.agreement import TaskAction
from timonel.training.worker.fit.checkpoints import Checkpoint, Progress
from timonel.training.worker.fit.model_fit import add_callback, replace_fit, replayed_history
from timonel.training.worker.fit.services import Services
from timonel.training.worker.fit.watch import FitCall, FitWatch, callback_for
from timonel.training.worker.inputs import building, fit_data, sharding
from timonel.training.worker.numerics import learning_rate
from timonel.training.worker.plugin import FitPlugin
from timonel.training.worker.private import mid_epoch, optimizers, saving
from timonel.training.worker.reports.reporting import FitPlan, Reporter, Summaries
from timonel.training.worker.state import callback_state
from timonel.training.worker.state.snapshot import Snapshot, restore_model
from timonel.training.worker.state.sources import feed_of
from timonel.training.worker.state.variables import Replicas

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fitted:
    """Model and data of the last ``fit`` call."""

    model: Any
    data: Any


class Fits:
    """The ``fit`` calls of one process.

    Not thread-safe: scripts call ``fit`` from one thread.

    Args:
        services: Services of the task.
        plugins: Features that hook into each call, in order.
        loop: Replacement for Keras' own ``fit``: a `ps.loop.ParameterServerLoop`. Its ``fit``
            starts at ``arguments["initial_epoch"]`` and ``watch.first_step``, and calls
            `FitWatch.step_boundary` between steps.
    """

    def __init__(
        self, services: Services, plugins: Sequence[FitPlugin] = (), *, loop: Any = None
    ) -> None:
        self.last: Fitted | None = None
        self._services = services
        self._keras = services.keras
        self._plugins = plugins
        self._loop = loop
        self._summaries = Summaries(services.tensorboard_dir)
        self._replicas = Replicas(services.strategy, services.workers)
        self._count = self._steps = self._epochs = 0
        """Calls so far, and the steps and epochs of all calls."""

    def install(self) -> None:
        """Replace ``fit`` of this process's Keras."""
        replace_fit(self._keras, self._fit)

    def _fit(self, original: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
        number, self._count = self._count, self._count + 1
        data = arguments.get("x")
        for plugin in self._plugins:
            plugin.fit_begins(model, arguments)
        saved = self._services.checkpoints.latest(number)
        before = saved.progress if saved is not None else Progress(steps=self._steps)
        call = FitCall(number, model, arguments, before, saved)
        if saved is not None and saved.progress.finished:
            history = self._replay(call, saved, data)
        else:
            with contextlib.ExitStack() as stack:
                for plugin in self._plugins:
                    stack.enter_context(plugin.around_fit(arguments))
                history = self._train(original, call)
        self.last = Fitted(model, data)
        for plugin in self._plugins:
            plugin.fit_ends(model, history)
        return history

    def _replay(self, call: FitCall, saved: Checkpoint, data: Any) -> Any:
        logger.info("fit %d finished before the restart: restoring its weights", call.number)
        building.ensure_built(self._keras, call.model, data)
        restore_model(call.model, saved.state, self._replicas)
        self._add(saved.progress)
        return replayed_history(self._keras, call.model, saved.progress)

    def _train(self, original: Callable[..., Any], call: FitCall) -> Any:
        services, model, arguments = self._services, call.model, call.arguments
        batch_size = fit_data.batch_size_of(arguments)  # before the feed replaces the data
        feed = feed_of(self._keras, arguments, call.number, resumes=call.saved is not None)
        logger.info("fit %d: %s", call.number, feed.note)
        if call.saved is not None:
            self._resume(call, call.saved)
        callbacks = callback_state.listed(arguments.get("callbacks"))
        own_snapshots = getattr(self._loop, "snapshots", None)
        watch = FitWatch(
            services,
            call,
            own_snapshots(model, arguments)
            if own_snapshots is not None
            else Snapshot(model, callbacks, self._replicas, feed),
            reporter=self.reporter(call, batch_size),
            feed=feed,
            average=building.averaging(model, services.strategy, services.replicas),
        )
        add_callback(arguments, callback_for(self._keras, watch))
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
            try:
                history = self._run_loop(original, call, watch)
            except BaseException:
                services.checkpoints.drain()  # finish writing a checkpoint
                raise
            watch.finish()
        self._add(watch.progress)
        return history

    def _run_loop(self, original: Callable[..., Any], call: FitCall, watch: FitWatch) -> Any:
        if self._loop is not None:
            return self._loop.fit(call.model, call.arguments, watch)
        with (
            mid_epoch.entering(self._keras),
            mid_epoch.stepping(call.model, watch.step_boundary),
        ):
            return original(**call.arguments)

    def _resume(self, call: FitCall, saved: Checkpoint) -> None:
        progress, arguments = saved.progress, call.arguments
        step = f", step {progress.step + 1}" if progress.step else ""
        logger.info("fit %d resumes at epoch %d%s", call.number, progress.next_epoch + 1, step)
        arguments["initial_epoch"] = progress.next_epoch
        callback_state.go_on(self._keras, arguments.get("callbacks"))
        building.ensure_built(self._keras, call.model, arguments.get("x"))
        # Fails early if the model has changed; the state is restored once callbacks have begun.
        restore_model(call.model, saved.state, self._replicas)

    def reporter(self, call: FitCall, batch_size: int | None) -> Reporter | None:
        """Return the reporter of a call in the chief; log the batch size."""
        settings, replicas = self._services.settings, self._services.replicas
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
        if self._services.run is None:
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
        rate = functools.partial(
            optimizers.learning_rate,
            getattr(call.model, "optimizer", None),
            learning_rate.rule_of(settings, replicas),
        )
        return Reporter(self._services.run, self._summaries, plan, learning_rate=rate)

    def _add(self, progress: Progress) -> None:
        self._steps = progress.steps
        self._epochs += progress.next_epoch

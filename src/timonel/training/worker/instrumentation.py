"""Pace reports and requested profiles of a training task."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from timonel.tracking import RunWriter
from timonel.training.settings import Settings
from timonel.training.worker.context import TrainingContext
from timonel.training.worker.fit.managed_fit import Fits
from timonel.training.worker.inputs import building
from timonel.training.worker.numerics import gradients
from timonel.training.worker.private import end_of_data
from timonel.training.worker.ps.pace import PieceTeller
from timonel.training.worker.reports import pace, profiling
from timonel.training.worker.reports.step_numbers import parse_steps
from timonel.training.worker.task.cluster import Cluster

logger = logging.getLogger(__name__)


class Seen:
    """Adds pace reports and profiling to a task's ``fit`` calls.

    Create it before entering the strategy's scope: the measurements are local to the process.

    Args:
        keras: The Keras module that the script uses.
        context: The job's training context.
        run: The run's writer; each task has one.
        settings: How the job trains.
        task_dir: The task's folder.
    """

    def __init__(
        self,
        keras: Any,
        context: TrainingContext,
        run: RunWriter,
        settings: Settings,
        task_dir: Path,
    ) -> None:
        self._keras = keras
        self._run = run
        self._settings = settings
        self._cluster = context.cluster
        self._stopwatch = pace.Stopwatch() if _waits(context.cluster, settings) else None
        self._profiler = self._make_profiler(settings, context, task_dir)
        self._teller: pace.Teller | PieceTeller

    def install(self, fits: Fits) -> None:
        """Instrument the calls of ``fits``; install it after other argument hooks."""
        if self._stopwatch is not None:
            end_of_data.watch_batches(self._stopwatch.has_batch, self._stopwatch.have_batches)
            gradients.before_reduce.append(self._stopwatch.arrive)
            gradients.after_reduce.append(self._stopwatch.leave)
            self._teller = self._make_teller(self._stopwatch)
            fits.before_fit.append(self._tell_pace)
        elif fits.loop is not None and hasattr(fits.loop, "observe"):
            self._teller = self._make_piece_teller()
            fits.loop.observe = self._teller.note
            fits.before_fit.append(self._take_batch_size)
        if self._profiler is not None:
            fits.before_fit.append(self._profile)

    def _take_batch_size(self, _model: Any, arguments: dict[str, Any]) -> None:
        given = arguments.get("x"), arguments.get("batch_size")
        self._teller.batch_size = building.batch_size(*given)

    def _tell_pace(self, model: Any, arguments: dict[str, Any]) -> None:
        assert self._stopwatch is not None
        assert isinstance(self._teller, pace.Teller)
        self._take_batch_size(model, arguments)
        callback = pace.callback_for(self._keras, self._stopwatch, self._teller)
        add_callback(arguments, callback)

    def _profile(self, _model: Any, arguments: dict[str, Any]) -> None:
        profiler, self._profiler = self._profiler, None  # only for the first call
        if profiler is not None:
            initial = int(arguments.get("initial_epoch") or 0)
            add_callback(arguments, profiling.callback_for(self._keras, profiler, initial))

    def _make_teller(self, stopwatch: pace.Stopwatch) -> pace.Teller:
        return pace.Teller(
            self._run,
            self._cluster.task_id,
            stopwatch.read,
            share=1 / len(self._cluster.trainers),
            names_slowest=self._cluster.is_chief,
        )

    def _make_piece_teller(self) -> PieceTeller:
        backups = self._settings.parameter_servers.backup_workers
        workers = len(self._cluster.tasks.get("worker", ()))
        # An asynchronous update covers a batch, a synchronous one a part from each worker.
        return PieceTeller(self._run, parts=1 if backups is None else max(1, workers - backups))

    def _make_profiler(
        self, settings: Settings, context: TrainingContext, task_dir: Path
    ) -> profiling.Profiler | None:
        asked = settings.profiling.profile
        if asked is None:
            return None
        return profiling.Profiler(
            parse_steps(asked),
            context.tensorboard_dir,
            context.cluster.task_id,
            scratch=task_dir / "profile",
            tell=self._tell_profile,
            marks_steps=self._keras.__name__ == "keras",
        )

    def _tell_profile(self, message: str, facts: dict[str, Any]) -> None:
        logger.info("%s", message)
        if not self._cluster.is_chief:
            return
        if facts:
            self._run.event("profile", **facts)
        else:
            self._run.event("log", level="warning", message=message)


def add_callback(arguments: dict[str, Any], callback: Any) -> None:
    """Add a callback to the arguments of a ``fit`` call."""
    given: Any = arguments.get("callbacks")
    if hasattr(given, "callbacks"):  # a CallbackList, which Keras uses unchanged
        callback.set_model(given.model)
        callback.set_params(given.params)
        given.callbacks.append(callback)
        return
    if given is None:
        arguments["callbacks"] = [callback]
    else:
        arguments["callbacks"] = [
            *(given if isinstance(given, list | tuple) else [given]),
            callback,
        ]


def _waits(cluster: Cluster, settings: Settings) -> bool:
    """Tell whether the waiting time for other tasks can be measured."""
    # XLA compiles no clock into a step.
    return (
        len(cluster.trainers) > 1
        and not settings.uses_parameter_servers
        and not settings.numerics.xla
    )

"""Plug-ins that report the pace of a task and profile its steps."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from timonel.tracking import RunWriter
from timonel.training.option_values import parse_steps
from timonel.training.worker.fit.services import Services
from timonel.training.worker.inputs.fit_data import batch_size_of
from timonel.training.worker.numerics import gradients
from timonel.training.worker.plugin import FitPlugin
from timonel.training.worker.private import tf_data
from timonel.training.worker.reports import pace, profiling
from timonel.training.worker.state import callback_state

logger = logging.getLogger(__name__)


class PaceReports(FitPlugin):
    """Measures and reports the time that a task computes and waits per step.

    Create it outside the strategy's scope: the measurements are local to the process.
    """

    def __init__(self, services: Services, run: RunWriter) -> None:
        cluster = services.cluster
        self._keras = services.keras
        self._stopwatch = pace.Stopwatch()
        self._reporter = pace.PaceReporter(
            run,
            cluster.task_id,
            self._stopwatch.read,
            share=1 / len(cluster.trainers),
            names_slowest=cluster.is_chief,
        )

    def install(self) -> None:
        """Record the times at which workers have their batches and gradients."""
        tf_data.watch_batches(self._stopwatch.has_batch, self._stopwatch.have_batches)
        gradients.before_reduce.append(self._stopwatch.arrive)
        gradients.after_reduce.append(self._stopwatch.leave)

    def fit_begins(self, model: Any, arguments: dict[str, Any]) -> None:  # noqa: ARG002
        """Report the pace of the call."""
        self._reporter.batch_size = batch_size_of(arguments)
        callback = callback_state.callback_of(
            self._keras,
            on_epoch_begin=lambda *_: self._stopwatch.pause(),
            on_train_batch_end=lambda *_: self._reporter.tick(),
            on_test_begin=lambda *_: self._stopwatch.pause(),
        )
        callback_state.add(arguments, callback)


class StepProfile(FitPlugin):
    """Profiles the requested steps, as in ``10:20``, of the first ``fit`` call."""

    def __init__(self, services: Services, run: RunWriter, task_dir: Path, steps: str) -> None:
        self._keras = services.keras
        self._run = run
        self._is_chief = services.cluster.is_chief
        self._profiler: profiling.Profiler | None = profiling.Profiler(
            parse_steps(steps),
            services.tensorboard_dir,
            services.cluster.task_id,
            scratch=task_dir / "profile",
            tell=self._report,
            marks_steps=services.keras.__name__ == "keras",
        )

    def fit_begins(self, model: Any, arguments: dict[str, Any]) -> None:  # noqa: ARG002
        """Profile the first call only."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            initial = int(arguments.get("initial_epoch") or 0)
            callback_state.add(arguments, profiling.callback_for(self._keras, profiler, initial))

    def _report(self, message: str, fields: dict[str, Any]) -> None:
        logger.info("%s", message)
        if not self._is_chief:
            return
        if fields:
            self._run.event("profile", **fields)
        else:
            self._run.event("log", level="warning", message=message)

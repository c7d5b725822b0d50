"""Process of an evaluator.

It runs the user's program like the trainers, with one replica and outside their cluster. Its k-th
call of ``fit`` builds the model too, but waits for the checkpoints of the trainers' k-th call,
evaluates them on the call's validation data, and returns the same result.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from timonel.data import load_registry
from timonel.storage.atomic import write_text
from timonel.tracking import RunWriter
from timonel.tracking.events import FILE_NAME, EventReader
from timonel.training.evaluations import CheckpointEvaluation, EvaluationRecords
from timonel.training.option_values import VALIDATION_PREFIX, parse_best, parse_early_stopping
from timonel.training.settings import Settings
from timonel.training.worker import bootstrap, heartbeat, redirected_saves
from timonel.training.worker.context import enter
from timonel.training.worker.evaluation import trainers
from timonel.training.worker.evaluation.follower import EvaluationPolicy, Follower
from timonel.training.worker.evaluation.trainers import add_to_history
from timonel.training.worker.fit.agreement import TaskAction
from timonel.training.worker.fit.checkpoints import Checkpoint, Checkpoints
from timonel.training.worker.fit.model_fit import replace_method, replayed_history
from timonel.training.worker.inputs import building
from timonel.training.worker.numerics import precision
from timonel.training.worker.reports.reporting import Summaries
from timonel.training.worker.state.variables import StrategyReplicas
from timonel.training.worker.strategy import devices
from timonel.training.worker.termination import Termination

logger = logging.getLogger(__name__)


class EvaluationReport:
    """Reports evaluations to a run and TensorBoard's event files, each once."""

    def __init__(self, run: RunWriter, task_id: str, summaries: Summaries) -> None:
        self._run = run
        self._task_id = task_id
        self._summaries = summaries
        self._events = EventReader(run.folder / FILE_NAME)
        self._reported: set[tuple[int, str]] = set()
        self._saved: dict[int, set[str]] = {}
        self._epochs_before = 0
        self.is_shared = False
        """Whether the trainers report epoch ends of the current call, too."""

    def tell(self, fit: int, done: CheckpointEvaluation) -> None:
        """Report the metrics of a checkpoint, unless they have been reported."""
        self._look()
        if (fit, done.checkpoint) in self._reported:
            return
        self._reported.add((fit, done.checkpoint))
        if not (self.is_shared and done.is_epochs_end):
            self._run.event(
                "metrics",
                metrics=dict(done.values),
                step=done.step,
                epoch=self._epochs_before + done.epoch,
                task=self._task_id,
                fit=fit,
                fit_epoch=done.epoch + 1,
                is_epochs_end=done.is_epochs_end,
                checkpoint=done.checkpoint,
                seconds=done.seconds,
            )
        values = {k.removeprefix(VALIDATION_PREFIX): value for k, value in done.metrics.items()}
        self._summaries.evaluation(values, done.step)

    def saved(self, fit: int) -> set[str]:
        """Return the names of a call's checkpoints that were reported as saved."""
        self._look()
        return self._saved.get(fit, set())

    def fit_ends(self, final: Checkpoint) -> None:
        """Record the end of a call, which offsets later epochs."""
        self._epochs_before += final.progress.next_epoch

    def _look(self) -> None:
        while events := self._events.read():
            for event in events:
                if event["type"] == "checkpoint":
                    name = Path(str(event.get("path"))).name
                    self._saved.setdefault(int(event.get("fit", 0)), set()).add(name)
                elif event["type"] == "metrics" and event.get("task") == self._task_id:
                    self._reported.add((int(event["fit"]), str(event["checkpoint"])))


@dataclass(eq=False)
class EvaluatorFits:
    """``fit`` calls of an evaluator. Not thread-safe: scripts call ``fit`` from one thread."""

    keras: Any
    follower: Follower
    records: EvaluationRecords
    report: EvaluationReport
    count: int = 0  # of calls so far

    def install(self) -> None:
        """Replace ``fit`` of this process's Keras."""
        replace_method(self.keras.Model, "fit", lambda _, *given: self._fit(*given))

    def _fit(self, model: Any, arguments: dict[str, Any]) -> Any:
        number, self.count = self.count, self.count + 1
        wanted = trainers.evaluation_of(arguments)
        looks = trainers.who_validates(self.keras, arguments.get("callbacks"))
        self.report.is_shared = looks is not None
        if wanted is None:
            logger.info("fit %d has no validation data. The evaluator has nothing to do.", number)
        ensure_built = functools.partial(
            building.ensure_built, self.keras, model, arguments.get("x")
        )
        ensure_built()
        evaluate = (
            None if wanted is None else functools.partial(_evaluate, model, ensure_built, wanted)
        )
        final = self.follower.follow(number, evaluate)
        if final is None:
            logger.warning("The trainers finished without fit %d. The evaluator ends.", number)
            raise SystemExit(0)
        restore_weights(model, final)
        record = self.records.read(number)
        if record.skipped:
            logger.info("fit %d: skipped %d checkpoints for newer ones.", number, record.skipped)
        self.report.fit_ends(final)
        history = replayed_history(self.keras, model, final.progress)
        add_to_history(history, record)
        return history


def restore_weights(model: Any, found: Checkpoint) -> None:
    """Load the weights of a checkpoint into a model."""
    own = list(model.variables)
    StrategyReplicas(None).restore(own, found.state.variables[: len(own)])


def _evaluate(
    model: Any,
    ensure_built: Callable[[Collection[str]], object],
    wanted: Mapping[str, Any],
    found: Checkpoint,
) -> dict[str, float]:
    # Keras does not evaluate with metrics that exist and that no step has used.
    ensure_built(found.state.extra["built"])
    restore_weights(model, found)
    results = model.evaluate(**wanted)
    return {
        f"{VALIDATION_PREFIX}{name}": float(value)
        for name, value in results.items()
        if np.ndim(value) == 0
    }


def run(task: bootstrap.Task, termination: Termination) -> None:
    """Evaluate a job's checkpoints until its trainers have finished."""
    settings = task.spec.settings
    devices.configure_evaluator(
        devices.HostPosition(*task.cluster.neighbours),
        per_worker=settings.distribution.devices_per_worker,
        requested_threads=settings.devices.threads,
    )
    keras = importlib.import_module(task.spec.keras)
    keras.utils.set_random_seed(task.spec.seed)
    precision.configure(keras, settings.numerics)
    redirected_saves.separate_caches(task.cluster)
    termination.install()
    context = bootstrap.context_of(task, None)
    enter(context)
    load_registry.configure(load_registry.InputShard())
    summaries = Summaries(context.tensorboard_dir)
    report = EvaluationReport(task.open_run(), task.cluster.task_id, summaries)
    records = EvaluationRecords(task.job_dir)
    progress = task.task_dir / "progress"
    follower = Follower(
        Checkpoints(context.checkpoint_dir, writes=False, progress=progress),
        records,
        evaluation_policy(settings, task.job_dir),
        tell=report.tell,
        saved=report.saved,
    )
    fits = EvaluatorFits(keras, follower, records, report)
    fits.install()
    heartbeat.begin(task.task_dir)
    with redirected_saves.redirected(keras, task.task_dir / "scratch"), bootstrap.until_exit():
        bootstrap.run_program_of(task, None)
    if not fits.count:
        logger.warning("The script called no fit. The evaluator had nothing to do.")


def evaluation_policy(settings: Settings, job_dir: Path) -> EvaluationPolicy:
    """Return how to use the results, given the options of the job."""
    best = parse_best(settings.checkpoints.keep_best)

    def ask_to_stop(fit: int) -> None:
        write_text(job_dir / "requests" / TaskAction.STOP.value, f"{fit}\n")

    return EvaluationPolicy(
        best=best if best is not None and best.needs_evaluation else None,
        stopping=parse_early_stopping(settings.evaluation.early_stopping),
        ask_to_stop=ask_to_stop,
    )

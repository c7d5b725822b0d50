"""The evaluator: the same script beside training, whose ``fit`` evaluates instead of training.

It runs the user's program as the trainers do, with one replica and outside their cluster. Call
number k of ``fit`` builds its model there too, but waits for the checkpoints of the trainers' call
k, evaluates them on the call's validation data, and returns what the trainers' call returns.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from timonel.data import session
from timonel.storage import find_workspace
from timonel.storage.atomic import write_text
from timonel.tracking import RunWriter, open_run
from timonel.tracking.events import FILE_NAME, EventReader
from timonel.training.settings import Settings
from timonel.training.worker import alive, bootstrap, building, devices, numerics
from timonel.training.worker.agreement import Wish
from timonel.training.worker.checkpoints import Checkpoint, Checkpoints
from timonel.training.worker.context import enter
from timonel.training.worker.evaluation import validation
from timonel.training.worker.evaluation.follower import Follower, Wanted
from timonel.training.worker.evaluation.history import add_to_history
from timonel.training.worker.evaluation.judgement import PREFIX, judges, parse_stopping
from timonel.training.worker.evaluation.record import Evaluated, Record, Records
from timonel.training.worker.fits import replace_fit
from timonel.training.worker.state.best import parse_best
from timonel.training.worker.state.variables import restore
from timonel.training.worker.summaries import Summaries
from timonel.training.worker.watch import recall

if TYPE_CHECKING:
    from timonel.training.worker.bootstrap import Task
    from timonel.training.worker.outcome import Termination

logger = logging.getLogger(__name__)


def run(task: Task, termination: Termination) -> None:
    """Evaluate the checkpoints of a job until its trainers are through the script."""
    settings = task.spec.settings
    devices.configure_evaluator(
        devices.Place(*task.cluster.neighbours),
        per_worker=settings.distribution.devices_per_worker,
        wanted_threads=settings.devices.threads,
    )
    keras = importlib.import_module(task.spec.keras)
    keras.utils.set_random_seed(task.spec.seed)
    numerics.configure(keras, settings.numerics)
    termination.install()
    context = bootstrap.context_of(task, None)
    enter(context)
    session.configure(session.InputShard())
    run_ = open_run(find_workspace(task.spec.workspace, create=False), task.spec.run_id)
    report = Report(run_, task.cluster.task_id, Summaries(context.tensorboard_dir))
    records = Records(task.job_dir)
    progress = task.task_dir / "progress"
    follower = Follower(
        Checkpoints(context.checkpoint_dir, writes=False, progress=progress),
        records,
        wanted_by(settings, task.job_dir),
        tell=report.tell,
        saved=report.saved,
    )
    Evaluator(keras, follower, records, report).install()
    (task.task_dir / "ready").touch()
    alive.begin(task.task_dir)
    with bootstrap.until_exit():
        bootstrap.run_program_of(task, None)


def wanted_by(settings: Settings, job_dir: Path) -> Wanted:
    """Return what follows from the results, by the options of the job."""
    best = parse_best(settings.checkpoints.keep_best)

    def ask_to_stop(fit: int) -> None:
        write_text(job_dir / "requests" / Wish.STOP.value, f"{fit}\n")

    return Wanted(
        best=best if judges(best) else None,
        stopping=parse_stopping(settings.evaluation.early_stopping),
        ask_to_stop=ask_to_stop,
    )


class Evaluator:
    """The ``fit`` calls of an evaluator. Not thread-safe: scripts call ``fit`` from one thread.

    Args:
        keras: The Keras module, ``keras`` or ``tf_keras``.
        follower: Waits for checkpoints.
        records: What was done.
        report: Tells the run.
    """

    def __init__(self, keras: Any, follower: Follower, records: Records, report: Report) -> None:
        self._keras = keras
        self._follower = follower
        self._records = records
        self._report = report
        self._count = 0

    def install(self) -> None:
        """Replace ``fit`` of this process's Keras."""
        replace_fit(self._keras, lambda _, model, arguments: self._fit(model, arguments))

    def _fit(self, model: Any, arguments: dict[str, Any]) -> Any:
        number, self._count = self._count, self._count + 1
        wanted = validation.evaluation_of(arguments)
        if wanted is None:
            logger.info("fit %d has no validation data: there is nothing to evaluate", number)
        building.ensure_built(self._keras, model, arguments.get("x"))
        evaluate = None if wanted is None else functools.partial(_evaluate, model, wanted)
        final = self._follower.follow(number, evaluate)
        if final is None:
            logger.warning("the trainers are through without fit %d: the evaluator ends", number)
            raise SystemExit(0)
        restore_weights(model, final)
        record = self._records.read(number)
        if record.skipped:
            logger.info("fit %d: %d checkpoints were passed over", number, record.skipped)
        self._report.fit_ends(final)
        return self._history(model, final, record)

    def _history(self, model: Any, final: Checkpoint, record: Record) -> Any:
        history = self._keras.callbacks.History()
        history.set_model(model)
        history.set_params({"verbose": 0, "epochs": final.progress.next_epoch, "steps": None})
        history.on_train_begin()
        recall(history, final.progress)
        add_to_history(history, record)
        model.history = history
        return history


class Report:
    """Tells a run of evaluations, each once.

    Args:
        run: The run's writer.
        task_id: The evaluator's name.
        summaries: TensorBoard's event files.
    """

    def __init__(self, run: RunWriter, task_id: str, summaries: Summaries) -> None:
        self._run = run
        self._task_id = task_id
        self._summaries = summaries
        self._events = EventReader(run.folder / FILE_NAME)
        self._told: set[tuple[int, str]] = set()
        self._saved: dict[int, set[str]] = {}
        self._epochs_before = 0

    def tell(self, fit: int, done: Evaluated) -> None:
        """Record the metrics of a checkpoint, unless they are recorded."""
        self._look()
        if (fit, done.checkpoint) in self._told:
            return
        self._told.add((fit, done.checkpoint))
        self._run.event(
            "metrics",
            metrics=dict(done.values),
            step=done.step,
            epoch=self._epochs_before + done.epoch,
            task=self._task_id,
            fit=fit,
            checkpoint=done.checkpoint,
            seconds=done.seconds,
        )
        values = {name.removeprefix(PREFIX): value for name, value in done.metrics.items()}
        self._summaries.evaluation(values, done.step)

    def saved(self, fit: int) -> set[str]:
        """Return the names of the checkpoints of a call that were reported as saved."""
        self._look()
        return self._saved.get(fit, set())

    def fit_ends(self, final: Checkpoint) -> None:
        """Note that a call is finished: epochs of the next ones are counted on from it."""
        self._epochs_before += final.progress.next_epoch

    def _look(self) -> None:
        while events := self._events.read():
            for event in events:
                if event["type"] == "checkpoint":
                    name = Path(str(event.get("path"))).name
                    self._saved.setdefault(int(event.get("fit", 0)), set()).add(name)
                elif event["type"] == "metrics" and event.get("task") == self._task_id:
                    self._told.add((int(event["fit"]), str(event["checkpoint"])))


def restore_weights(model: Any, found: Checkpoint) -> None:
    """Put the weights of a checkpoint into a model.

    Raises:
        TimonelError: The model is another one.
    """
    own = list(model.variables)
    restore(own, found.state.variables[: len(own)])


def _evaluate(model: Any, wanted: Mapping[str, Any], found: Checkpoint) -> dict[str, float]:
    restore_weights(model, found)
    results = model.evaluate(**wanted)
    return {
        f"{PREFIX}{name}": float(value) for name, value in results.items() if np.ndim(value) == 0
    }

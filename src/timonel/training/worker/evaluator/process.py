"""Process of an evaluator.

It runs the user's program like the trainers, with one replica and outside their cluster. Its k-th
call of ``fit`` builds the model too, but waits for the checkpoints of the trainers' k-th call,
evaluates them on the call's validation data, and returns the same result.
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from timonel.data import load_registry
from timonel.storage import find_workspace
from timonel.storage.atomic import write_text
from timonel.tracking import open_run
from timonel.training.settings import Settings
from timonel.training.worker import bootstrap, redirected_saves
from timonel.training.worker.context import enter
from timonel.training.worker.evaluation.early_stopping import judges, parse_stopping
from timonel.training.worker.evaluation.record import Records
from timonel.training.worker.evaluator.fits import EvaluatorFits
from timonel.training.worker.evaluator.follower import Follower, Wanted
from timonel.training.worker.evaluator.report import Report
from timonel.training.worker.fit.agreement import TaskAction
from timonel.training.worker.fit.checkpoints import Checkpoints
from timonel.training.worker.numerics import precision
from timonel.training.worker.reports.summaries import Summaries
from timonel.training.worker.state.best import parse_best
from timonel.training.worker.strategy import devices
from timonel.training.worker.task import alive

if TYPE_CHECKING:
    from timonel.training.worker.bootstrap import Task
    from timonel.training.worker.termination import Termination


logger = logging.getLogger(__name__)


def run(task: Task, termination: Termination) -> None:
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
    fits = EvaluatorFits(keras, follower, records, report)
    fits.install()
    (task.task_dir / "ready").touch()
    alive.begin(task.task_dir)
    with redirected_saves.redirected(keras, task.task_dir / "scratch"), bootstrap.until_exit():
        bootstrap.run_program_of(task, None)
    if not fits.count:
        logger.warning("the script has called no fit: there was nothing to evaluate")


def wanted_by(settings: Settings, job_dir: Path) -> Wanted:
    """Return how to use the results, given the options of the job."""
    best = parse_best(settings.checkpoints.keep_best)

    def ask_to_stop(fit: int) -> None:
        write_text(job_dir / "requests" / TaskAction.STOP.value, f"{fit}\n")

    return Wanted(
        best=best if judges(best) else None,
        stopping=parse_stopping(settings.evaluation.early_stopping),
        ask_to_stop=ask_to_stop,
    )

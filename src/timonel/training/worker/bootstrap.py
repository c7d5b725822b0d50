"""Set up a task, run the user's program, and report the outcome.

Importing this module initializes nothing of TensorFlow, so that a zygote can import it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from timonel.data import load_registry
from timonel.engines.base import FailureCause
from timonel.errors import TimonelError
from timonel.processes.cores import usable_cores
from timonel.storage import find_workspace
from timonel.tracking import RunWriter, open_run
from timonel.training.cluster import ENVIRONMENT_VARIABLE, Cluster, parse_cluster
from timonel.training.combinations import choose
from timonel.training.evaluations import EvaluationRecords
from timonel.training.spec import KERAS_BACKEND, TrainSpec, read_spec, require_tensorflow_backend
from timonel.training.train_options import Strategy
from timonel.training.worker import exit_report, heartbeat, late_import, silence
from timonel.training.worker.context import TrainingContext, enter
from timonel.training.worker.exit_report import EXIT_FAILED, TaskOutcome
from timonel.training.worker.fit import model_fit
from timonel.training.worker.numerics import precision
from timonel.training.worker.program import (
    fill_placeholders,
    record_result,
    recording_parameters,
    run_program,
)
from timonel.training.worker.reports.summaries import recorded_summaries
from timonel.training.worker.state.checkpoint_writer import is_writing
from timonel.training.worker.strategy import devices
from timonel.training.worker.termination import Termination, watch_peers

logger = logging.getLogger(__name__)

_HYPERTUNE = "CLOUD_ML_HP_METRIC_FILE"
# These roles import TensorFlow; other tasks do not import them.
_EVALUATOR = "timonel.training.worker.evaluator"
_SERVERS = "timonel.training.worker.ps.roles"


@dataclass(frozen=True)
class Task:
    """One process of a training job."""

    spec: TrainSpec
    cluster: Cluster
    job_dir: Path
    task_dir: Path

    @property
    def peers(self) -> int:
        """Number of other tasks that train."""
        return len(self.cluster.trainers) - 1

    def open_run(self) -> RunWriter:
        """Return a writer of the run's record."""
        workspace = find_workspace(self.spec.workspace, create=False, offline=True)
        return open_run(workspace, self.spec.run_id)


def run(spec_path: Path, environ: Mapping[str, str]) -> int:
    """Run a task, in the environment set by the engine, to its end and return its exit code."""
    _log_to_stderr()
    task_dir = Path(environ["TIMONEL_TASK_DIR"])
    try:
        spec = read_spec(spec_path)
        workspace = find_workspace(spec.workspace, create=False, offline=True)
        task = Task(
            spec=spec.with_paths(workspace.runs / spec.run_id, Path.cwd()),
            cluster=parse_cluster(environ.get(ENVIRONMENT_VARIABLE, "")),
            job_dir=Path(environ["TIMONEL_JOB_DIR"]),
            task_dir=task_dir,
        )
    except TimonelError as error:  # without a readable spec, no run to report to
        logger.warning("%s", error)
        exit_report.write_report(
            task_dir, TaskOutcome(EXIT_FAILED, FailureCause.USER_ERROR, str(error))
        )
        return EXIT_FAILED
    _set_environment(task)
    result = _run_to_outcome(task)
    exit_report.write_report(task.task_dir, result)
    return result.exit_code


def _run_to_outcome(task: Task) -> TaskOutcome:
    termination = Termination()
    termination.install()
    try:
        _train(task, termination)
    except BaseException as error:  # noqa: BLE001 - any error determines the exit code
        termination.ignore_more()
        result = exit_report.of_exception(
            exit_report.explained(
                error, load_registry.faults, is_served=task.spec.settings.uses_parameter_servers
            ),
            script=task.spec.script,
            peers=task.peers,
            terminating=termination.requested,
        )
        _log_failure(task, result)
        return result
    return exit_report.DONE


def _log_failure(task: Task, result: TaskOutcome) -> None:
    """Log a failure, and record a user's error in the run."""
    if result.traceback is None:
        if result.cause is not None:
            logger.warning("%s", result.message)
        return
    sys.stderr.write(result.traceback)
    with contextlib.suppress(TimonelError):  # the disk may be full
        writer = task.open_run()
        writer.event("error", task=task.cluster.task_id, traceback=result.traceback)


def _train(task: Task, termination: Termination) -> None:
    settings, role = task.spec.settings, task.cluster.role
    strategy_name = choose(
        settings.distribution.strategy,
        workers=len(task.cluster.trainers),
        devices=settings.distribution.devices_per_worker,
        ps=settings.parameter_servers.ps,
        tpu=devices.tpu_address() is not None,
    )
    if settings.distribution.strategy == "none":
        _run_alone(task)
    elif role == "evaluator":
        importlib.import_module(_EVALUATOR).run(task, termination)
    elif settings.uses_parameter_servers and role in {"ps", "worker"}:
        importlib.import_module(_SERVERS).run(task, termination)
    else:
        _run_managed(task, strategy_name, termination)


def _run_alone(task: Task) -> None:
    """Run a script that distributes itself: it gets only ``TF_CONFIG``."""
    run = _open_run(task)
    enter(replace(context_of(task, None), run=run))
    heartbeat.begin(task.task_dir)
    with recorded_summaries(run):
        run_program_of(task, run)


def _run_managed(task: Task, name: Strategy, termination: Termination) -> None:
    run = _open_run(task)
    with contextlib.ExitStack() as stack:
        finish: list[Callable[[bool], None]] = []

        def begin() -> None:
            finish.append(stack.enter_context(_managed(task, name, termination, run)))

        if task.spec.imports_late:
            late_import.call_before_import(("tensorflow", "keras", "tf_keras"), begin)
        else:
            begin()
        heartbeat.begin(task.task_dir)
        silence.watch(task.task_dir / "progress", functools.partial(_warn, run))
        try:
            with until_exit():
                run_program_of(task, run)
        except (Exception, SystemExit):
            for end in finish:
                end(False)
            raise
        if run is not None and task.spec.settings.evaluation.evaluator:
            EvaluationRecords(task.job_dir).mark_trained()
        for end in finish:
            end(True)


@contextlib.contextmanager
def _managed(
    task: Task, name: Strategy, termination: Termination, run: RunWriter | None
) -> Iterator[Callable[[bool], None]]:
    """Let ``fit`` of the imported Keras train as the job says; yield ``finish(succeeded)``."""
    settings = task.spec.settings
    require_tensorflow_backend(os.environ.get(KERAS_BACKEND))
    from timonel.training.worker import managed, redirected_saves  # noqa: PLC0415 - TensorFlow
    from timonel.training.worker.private import keras_fit  # noqa: PLC0415 - TensorFlow
    from timonel.training.worker.strategy import strategies  # noqa: PLC0415 - TensorFlow

    for noisy in ("tensorflow", "absl"):  # they log each device and each all-reduce
        logging.getLogger(noisy).setLevel(logging.WARNING)
    resources = devices.configure(
        devices.HostPosition(*task.cluster.neighbours, several_workers=task.peers > 0),
        per_worker=settings.distribution.devices_per_worker,
        memory=settings.devices.memory_per_device,
        requested_threads=settings.devices.threads,
    )
    keras = importlib.import_module(task.spec.keras)
    if task.spec.keras == "keras":
        require_tensorflow_backend(keras.backend.backend())
    if name != "none":
        keras_fit.require_supported(keras.__name__, keras.__version__)
    model_fit.reject_other_keras(task.spec.keras)
    keras.utils.set_random_seed(task.spec.seed)
    precision.configure(keras, settings.numerics)
    if task.peers:
        watch_peers(lambda: termination.is_leaving, is_writing)
    strategy = strategies.build(name, task.cluster, settings)
    if strategy is not None:
        strategies.adopt(strategy, name)
        devices.keep_configuration()
        keras_fit.make_variables_numbers()
    else:
        strategies.check_own(os.environ)
    keras_fit.keep_scope_when_cleared(
        functools.partial(precision.configure, keras, settings.numerics)
    )
    # The coordination service of multi-worker training replaced our handler with one that only
    # records SIGTERM.
    termination.install()
    context = replace(context_of(task, strategy), run=run)
    enter(context)
    if run is not None:
        if task.cluster.generation == 1:
            _warn_of_shared_cores(task, resources, run)
        run.event(
            "devices",
            **precision.record(keras_fit.policy_of(keras), name, strategy, settings),
            **resources.record(),
        )
    services = managed.services_of(
        keras, context, settings, run=run, task_dir=task.task_dir, termination=termination
    )
    own_run = run or task.open_run()
    own_copies = (
        contextlib.nullcontext()
        if context.is_chief
        else redirected_saves.redirected(keras, task.task_dir / "scratch")
    )
    with (
        managed.prepared(services, context, own_run, task.task_dir) as fits,
        contextlib.ExitStack() as beside_program,
    ):
        beside_program.enter_context(own_copies)
        beside_program.enter_context(recorded_summaries(run))

        def finish(succeeded: bool) -> None:
            beside_program.close()
            end = managed.finish if succeeded else managed.finish_failed
            end(services, context, fits)

        yield finish


def _warn(run: RunWriter | None, message: str) -> None:
    logger.warning("%s", message)
    if run is not None:
        run.event("log", level="warning", message=message)


def _warn_of_shared_cores(task: Task, resources: devices.DeviceResources, run: RunWriter) -> None:
    served = task.spec.settings.uses_parameter_servers
    trainers = task.cluster.trainers
    workers = len(task.cluster.tasks["worker"]) if served else len(trainers)
    if resources.kind != "CPU" or workers == 1 or task.cluster.neighbours[1] < len(trainers):
        return
    who = "Both workers" if workers == 2 else f"All {workers} workers"
    message = (
        f"{who} share this machine's {usable_cores():g} cores; one is usually faster here. "
        "Drop --workers, or give each its own machine or GPU."
    )
    _warn(run, message)


def run_program_of(task: Task, run: RunWriter | None) -> None:
    """Run the user's program; record its return value in ``run``, if given."""
    cluster, job_dir = task.cluster, str(task.job_dir)
    argv = task.spec.argv(job_dir, cluster.role)
    argv = fill_placeholders(argv, cluster.tasks, cluster.role, cluster.index)
    keywords = {"job_dir": job_dir} if task.spec.pass_job_dir else {}
    known = {*task.spec.params, *(("job_dir",) if task.spec.pass_job_dir else ())}
    if run is None:
        with recording_parameters(lambda _: None, known):  # switches, as in the chief
            run_program(task.spec, argv, keywords)
        return
    with recording_parameters(run.params, known, functools.partial(_warn, run)):
        value = run_program(task.spec, argv, keywords)
    if value is not None:
        record_result(run, value)


@contextlib.contextmanager
def until_exit() -> Iterator[None]:
    """Treat ``sys.exit()`` as a normal end, so that the model is exported."""
    try:
        yield
    except SystemExit as error:
        if error.code is not None and error.code != 0:
            raise


def context_of(task: Task, strategy: Any) -> TrainingContext:
    """Return the training context for a task's script."""
    return TrainingContext(
        cluster=task.cluster,
        job_dir=task.job_dir,
        strategy=strategy,
        params=task.spec.params,
        data=task.spec.data,
    )


def _open_run(task: Task) -> RunWriter | None:
    if not task.cluster.is_chief:
        return None
    run = task.open_run()
    if task.cluster.generation > 1:
        why = {"message": task.cluster.reason} if task.cluster.reason else {}
        run.event("restart", generation=task.cluster.generation, **why)
    return run


def _log_to_stderr() -> None:
    """Write timonel's log messages to the task's log; other loggers belong to the script."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("timonel: %(message)s"))
    own = logging.getLogger("timonel")
    own.handlers[:] = [handler]
    own.setLevel(logging.INFO)
    own.propagate = False


def _set_environment(task: Task) -> None:
    # Strategies build a cluster from it, which an evaluator does not belong to: an evaluator gets
    # one only with the strategy ``none``, for scripts that distribute themselves.
    settings, role = task.spec.settings, task.cluster.role
    is_alone = settings.distribution.strategy == "none" and settings.evaluation.evaluator
    if is_alone or (role != "evaluator" and task.cluster.size > 1):
        os.environ["TF_CONFIG"] = json.dumps(task.cluster.tf_config())
    if reports := os.environ.get(_HYPERTUNE):
        # A study names a file of the job's folder, which is elsewhere on each machine.
        os.environ[_HYPERTUNE] = str(task.job_dir / reports)
    for name, uri in task.spec.data.items():
        os.environ[f"TIMONEL_DATA_{name.upper()}" if name else "TIMONEL_DATA"] = uri

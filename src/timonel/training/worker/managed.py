"""Set up a task that trains under a strategy: services, plug-ins, scope, export."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from timonel.data import load_registry
from timonel.engines.agent.agent import OOM_REPORT
from timonel.storage.atomic import sweep
from timonel.tracking import RunWriter
from timonel.training.evaluations import EvaluationRecords
from timonel.training.settings import Settings
from timonel.training.worker import exporting, redirected_saves
from timonel.training.worker.context import TrainingContext
from timonel.training.worker.evaluation.trainers import Trainers
from timonel.training.worker.fit import loops
from timonel.training.worker.fit.agreement import Agreement, exchange_over, wait_for_all
from timonel.training.worker.fit.checkpoints import Checkpoints
from timonel.training.worker.fit.managed_fit import Fits
from timonel.training.worker.fit.services import Services
from timonel.training.worker.inputs import sharding
from timonel.training.worker.inputs.fit_data import batch_size_of
from timonel.training.worker.instrumentation import PaceReports, StepProfile
from timonel.training.worker.optimizing import OptimizerOptions
from timonel.training.worker.plugin import Around, FitPlugin, Patch
from timonel.training.worker.private import hidden_state, keras_fit, ps_variables, replica_steps
from timonel.training.worker.ps.pace import WorkerPaceReporter
from timonel.training.worker.state import callback_state, memory
from timonel.training.worker.state.process_variables import ProcessVariables
from timonel.training.worker.state.variables import StrategyReplicas
from timonel.training.worker.termination import Termination

_SPLITS = {"train": "training"}


def services_of(
    keras: Any,
    context: TrainingContext,
    settings: Settings,
    *,
    run: RunWriter | None,
    task_dir: Path,
    termination: Termination,
) -> Services:
    """Return a task's services; fetch and tidy the checkpoints. Only the chief has a ``run``."""
    checkpoints = Checkpoints(
        context.checkpoint_dir,
        writes=run is not None,
        progress=task_dir / "progress",
        policy=settings.checkpoints,
        records=EvaluationRecords(context.job_dir) if settings.evaluation.evaluator else None,
    )
    several = (
        context.strategy is not None
        and not settings.uses_parameter_servers
        and len(context.cluster.trainers) > 1
    )
    checkpoints.tidy()
    if run is not None:
        checkpoints.fill()
    if several and settings.checkpoints.checkpoint_uri is not None:
        wait_for_all(context.strategy)
        checkpoints.fill()
    agreement = Agreement(
        exchange_over(context.strategy) if several else None,
        is_chief=context.is_chief,
        requests=context.job_dir / "requests",
    )
    replicas = StrategyReplicas(context.strategy, len(context.cluster.trainers) if several else 1)
    barrier = functools.partial(wait_for_all, context.strategy) if several else lambda: None
    return Services(
        keras,
        context.cluster,
        checkpoints,
        context.tensorboard_dir,
        context.strategy,
        settings,
        run,
        agreement,
        termination,
        barrier,
        ProcessVariables(replicas),
    )


@contextlib.contextmanager
def prepared(
    services: Services, context: TrainingContext, run: RunWriter, task_dir: Path
) -> Iterator[Fits]:
    """Adapt ``data.load``, ``fit`` and custom loops, and enter the strategy's scope."""
    _configure_loading(services, context)
    loop = (
        _parameter_server_loop(services, context)
        if services.settings.uses_parameter_servers
        else None
    )
    plugins = plugins_of(services, run, context.job_dir, task_dir, loop)
    for plugin in plugins:
        plugin.install()
    fits = Fits(services, plugins, loop=loop)
    fits.install()
    loops.configure(services)
    scope = services.strategy.scope() if services.strategy is not None else contextlib.nullcontext()
    with scope, services.variables.watched():
        yield fits


def plugins_of(
    services: Services, run: RunWriter, job_dir: Path, task_dir: Path, loop: Any
) -> list[FitPlugin]:
    """Return the plug-ins of a task, in the order of their installation and calls."""
    # `Fits` is installed last: its ``fit`` surrounds what the plug-ins replace. ``loop`` is that of
    # a job with parameter servers, else None.
    keras, settings = services.keras, services.settings
    plugins: list[FitPlugin] = [
        # First, as layers and pipelines keep what they were created with.
        Patch(functools.partial(hidden_state.make_generators_restorable, keras)),
        Patch(functools.partial(redirected_saves.separate_caches, services.cluster)),
        Patch(functools.partial(exporting.watch_saves, keras)),
    ]
    if loop is not None:
        # It has taken Keras' own `fit`, and replaces its steps: the next two would not apply.
        plugins.append(Patch(functools.partial(_install_loop, services, loop)))
    elif services.strategy is not None:
        plugins.append(Patch(functools.partial(_install_replica_support, services)))
    if services.replicas > 1:
        plugins.append(
            Patch(functools.partial(sharding.install, services.strategy, services.workers))
        )
    # Before all that look at a call's batch size, which it makes global.
    plugins.append(OptimizerOptions(services))
    if settings.evaluation.evaluator:
        # Before callbacks are added: only the script's own may need the results of validation.
        plugins.append(Trainers(keras, EvaluationRecords(job_dir), task_dir))
    if loop is not None:
        plugins.append(WorkerPaceReporter(run, parts=loop.parts, loop=loop))
    elif services.workers > 1 and not settings.numerics.xla:  # XLA compiles no clock into a step
        plugins.append(PaceReports(services, run))
    if settings.profiling.profile is not None:
        plugins.append(StepProfile(services, run, task_dir, settings.profiling.profile))
    # They surround the call only: the first is the outermost.
    report, replicas = task_dir / OOM_REPORT, services.replicas
    plugins.append(Around(lambda given: memory.explained(batch_size_of(given), replicas, report)))
    redirected = functools.partial(redirected_saves.redirected_callbacks, keras)
    plugins.append(Around(lambda given: redirected(callback_state.listed(given.get("callbacks")))))
    return plugins


def finish_failed(services: Services, context: TrainingContext, fits: Fits) -> None:
    """Export the model of a script that failed after ``fit``, if no other task must take part."""
    if len(context.cluster.trainers) > 1 or fits.is_fitting:
        return
    try:
        reason = exporting.export_fitted(context.export_dir, fits.last, services.warn)
    except Exception:  # noqa: BLE001 - the script's error is the one to report
        return
    if reason is None:
        services.warn("The script failed after training: its model is exported.")


def finish(services: Services, context: TrainingContext, fits: Fits) -> None:
    """Export the model, then wait for all tasks: the chief hosts the cluster's services."""
    reason = exporting.export_fitted(context.export_dir, fits.last, services.warn)
    if reason is not None:
        services.warn(reason)
    services.barrier()


def _configure_loading(services: Services, context: TrainingContext) -> None:
    """Let ``data.load`` return this task's rows; the chief reports each load."""
    settings = services.settings
    load_registry.configure(
        load_registry.InputShard(
            0 if settings.uses_parameter_servers else context.cluster.rank,
            services.workers,
            max(1, services.replicas // services.workers),
            per_replica=settings.batches.batch_size_is == "per-replica",
        )
    )
    if services.run is not None:
        if settings.evaluation.evaluator:
            EvaluationRecords(context.job_dir).begin_training()
        sweep(context.job_dir)  # a partial export from before the chief was killed
        report = functools.partial(report_load, services.run, services.warn)
        load_registry.on_load.append(report)


def report_load(
    run: RunWriter, warn: Callable[[str], object], record: load_registry.LoadRecord
) -> None:
    """Record a loaded dataset, and warn of rows that each epoch skips."""
    run.event(
        "dataset-loaded",
        uri=record.uri,
        digest=record.digest,
        split=record.split,
        batch_size=record.batch_size,
        records=record.records,
        steps=record.steps,
        label_mode=record.label_mode,
        preprocessing=record.preprocessing.model_dump(mode="json"),
    )
    left_out = record.records - record.steps * record.batch_size
    if left_out > 0:
        warn(
            f"Each epoch skips {left_out} of {record.records} "
            f"{_SPLITS.get(record.split, record.split)} examples (different ones each time): they "
            f"do not fill a batch of {record.batch_size}."
        )


def _install_replica_support(services: Services) -> None:
    """Make Keras' ``fit``, ``evaluate`` and ``predict`` work under the strategy."""
    if services.replicas > 1:
        replica_steps.install(services.keras, services.warn)
    if services.keras.__name__ == "keras":
        keras_fit.install_keras_hooks()
        keras_fit.fix_shared_metrics()


def _parameter_server_loop(services: Services, context: TrainingContext) -> Any:
    from timonel.training.worker.ps import loop  # noqa: PLC0415 - few jobs have it

    def tell(message: str) -> None:
        if services.run is not None:
            services.run.event("log", level="info", message=message)

    return loop.ParameterServerLoop(
        services.keras,
        context.strategy,
        context.coordinator,
        services.settings,
        workers=len(context.cluster.tasks["worker"]),
        is_asked=lambda: bool(services.agreement.pending),
        tell=tell,
    )


def _install_loop(services: Services, loop: Any) -> None:
    from timonel.training.worker.ps import loop as served  # noqa: PLC0415 - few jobs have it
    from timonel.training.worker.ps import roles  # noqa: PLC0415

    roles.keep_metrics_local(services.keras)
    ps_variables.watch_unscheduled(
        services.strategy, functools.partial(services.warn, served.UNSCHEDULED)
    )
    loop.install(services.warn)
    exporting.surrounding = served.localised
